// SPDX-License-Identifier: Apache-2.0
// Kernels of argmax, topk and softmax; those of sums and extrema are core/tensor/reduce. Internal to ops/reduce.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

namespace cpu {
void argmax(const Tensor& x, const Tensor& y);                            // over the last dimension of a contiguous x
void topk(const Tensor& x, const Tensor& values, const Tensor& indices);  // likewise, sorted, descending
void softmax(const Tensor& x, const Tensor& y, bool log);                 // over the last dimension, contiguous
void softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool log);
}  // namespace cpu
namespace cuda {
void argmax(const Tensor& x, const Tensor& y);
void topk(const Tensor& x, const Tensor& values, const Tensor& indices);
void softmax(const Tensor& x, const Tensor& y, bool log);
void softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool log);
}  // namespace cuda

}  // namespace xylem
