// SPDX-License-Identifier: Apache-2.0
// The elementary kernels the core itself needs: copy (with cast), fill and accumulate on strided tensors.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

// All take the same shape, on one device; strides and dtypes are free unless noted.
namespace cpu {
void copy(const Tensor& dst, const Tensor& src);
void fill(const Tensor& dst, Scalar value);
void accumulate(const Tensor& dst, const Tensor& src, double scale);  // dst += scale * src, floats
}  // namespace cpu
namespace cuda {
void copy(const Tensor& dst, const Tensor& src);
void fill(const Tensor& dst, Scalar value);
void accumulate(const Tensor& dst, const Tensor& src, double scale);
// Both contiguous and of one dtype, on different devices (or device and host).
void transfer(const Tensor& dst, const Tensor& src, bool non_blocking);
}  // namespace cuda

}  // namespace xylem
