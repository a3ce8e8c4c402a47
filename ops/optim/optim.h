// SPDX-License-Identifier: Apache-2.0
// Optimizer kernels. Buffers are contiguous and of one size; lr, step, grad_scale and skip are read on the device.
#pragma once
#include "ops/ops.h"

namespace xylem {

struct AdamWStep {
  Tensor param, master, grad, m, v;  // grad: compute_type(param) or param's type; master may be undefined
  Tensor lr, step, grad_scale, skip;
  AdamWArgs args;
};
struct SgdStep {
  Tensor param, master, grad, momentum;  // momentum undefined: plain descent
  Tensor lr, grad_scale, skip;
  SgdArgs args;
};

namespace cpu {
void adamw(const AdamWStep& s);
void sgd(const SgdStep& s);
void sum_of_squares(const Tensors& tensors, const Tensor& result);
void ema(const Tensor& average, const Tensor& value, double decay);
}  // namespace cpu
namespace cuda {
void adamw(const AdamWStep& s);
void sgd(const SgdStep& s);
void sum_of_squares(const Tensors& tensors, const Tensor& result);
void ema(const Tensor& average, const Tensor& value, double decay);
}  // namespace cuda

}  // namespace xylem
