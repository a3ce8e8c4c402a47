// SPDX-License-Identifier: Apache-2.0
// Kernels of embedding, index_select, gather and scatter_add. Tensors are contiguous, indices i64.
#pragma once
#include "core/device/fault.h"
#include "core/tensor/tensor.h"

namespace xylem {

// A tensor seen as [outer, size, inner] around the indexed dimension.
struct Lanes {
  int64_t outer, size, inner;
};

// `fault` is what an index out of range is.
namespace cpu {
// out[o, j, i] = x[o, index[j], i]; any dtype.
void take_rows(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, const Fault& fault);
// out[o, index[j], i] += rows[o, j, i], summed in the order of j. Without `accumulate` out starts from zero. out: f32
// (f64 for f64) or the type of rows.
void add_rows(const Tensor& rows, const Tensor& index, const Tensor& out, Lanes lanes, bool accumulate);
// out[o, j, i] = x[o, index[o, j, i], i] with j < count; any dtype.
void gather(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, int64_t count, const Fault& fault);
// out[o, index[o, j, i], i] += source[o, j, i], in the order of j; out: compute_type(source).
void scatter_add(const Tensor& out, const Tensor& index, const Tensor& source, Lanes lanes, int64_t count,
                 const Fault& fault);
}  // namespace cpu
namespace cuda {
void take_rows(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, const Fault& fault);
void add_rows(const Tensor& rows, const Tensor& index, const Tensor& out, Lanes lanes, bool accumulate);
void gather(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, int64_t count, const Fault& fault);
void scatter_add(const Tensor& out, const Tensor& index, const Tensor& source, Lanes lanes, int64_t count,
                 const Fault& fault);
}  // namespace cuda

}  // namespace xylem
