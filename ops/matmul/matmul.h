// SPDX-License-Identifier: Apache-2.0
// What the matrix products are made of, for the other operations of the library.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

// d = a b + bias, or d += a b. a [B.., M, K], b [B.., K, N], d [B.., M, N] with equal batch dims and any strides (0
// where an operand is broadcast); bias [N] or undefined, not with `accumulate`. a and b have one type, d has that type
// or f32. 16-bit types multiply and add in f32. An operand is copied only when no leading dimension can express its
// strides.
void gemm(const Tensor& a, const Tensor& b, const Tensor& d, bool accumulate = false, const Tensor& bias = {});

// out [C] = or += the sums of the columns of x [R, C], rows contiguous. out: f32 or x's type. Fixed order of addition.
void column_sum(const Tensor& x, const Tensor& out, bool accumulate);

// Whether f32 products on the GPU may round their operands to TF32 (10 mantissa bits). Off by default.
void set_allow_tf32(bool allow);
bool allow_tf32();

// A checked and simplified product. The matrices of `batch[0] * batch[1]` products lie `step` elements apart.
struct Gemm {
  struct Operand {
    void* data = nullptr;
    DType dtype = f32;
    int64_t ld = 1;            // distance of rows, or of columns when transposed
    bool transposed = false;   // columns are contiguous instead of rows
    int64_t step[2] = {0, 0};  // for the outer and the inner batch dimension
  };
  int64_t m, n, k;
  int64_t batch[2] = {1, 1};
  Operand a = {}, b = {}, d = {};  // d is never transposed
  const void* bias = nullptr;
  bool accumulate = false;
};

namespace cpu {
void run_gemm(const Gemm& g, Device device);
void run_column_sum(const Tensor& x, const Tensor& out, bool accumulate);
}  // namespace cpu
namespace cuda {
void run_gemm(const Gemm& g, Device device);
void run_column_sum(const Tensor& x, const Tensor& out, bool accumulate);
}  // namespace cuda

}  // namespace xylem
