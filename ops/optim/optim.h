// SPDX-License-Identifier: Apache-2.0
// Kernels that go with the optimizers' updates (which are in update.h and *_step.cu). Buffers are contiguous.
#pragma once
#include "ops/ops.h"

namespace xylem {
namespace cpu {
void sum_of_squares(const Tensors& tensors, const Tensor& result);
void ema(const Tensor& average, const Tensor& value, double decay);
}  // namespace cpu
namespace cuda {
void sum_of_squares(const Tensors& tensors, const Tensor& result);
void ema(const Tensor& average, const Tensor& value, double decay);
}  // namespace cuda
}  // namespace xylem
