// SPDX-License-Identifier: Apache-2.0
// Second derivatives of fused operations: the backward pass is run through an equal composition of simple ones.
#pragma once
#include "ops/ops.h"

namespace xylem {

// The gradients of fn(inputs) that are needed, as differentiable tensors. `fn` must compute what the fused operation
// computes; `grads` are those of its outputs.
template <class F>
Tensors composed_backward(F&& fn, const Tensors& inputs, const std::vector<bool>& needs, const Tensors& grads) {
  EnableGrad enable;
  Tensors copies = inputs, wanted;
  std::vector<size_t> index;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !needs[i]) continue;
    // A node of its own for every input, so that the derivative is partial even where one input depends on another.
    copies[i] = mul(inputs[i], 1.0);
    wanted.push_back(copies[i]);
    index.push_back(i);
  }
  Tensors outputs = fn(copies), used_outputs, used_grads, result(inputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!grads[i].defined()) continue;
    used_outputs.push_back(outputs[i]);
    used_grads.push_back(grads[i]);
  }
  Tensors found = grad(used_outputs, wanted, used_grads, false, true);
  for (size_t i = 0; i < index.size(); ++i) result[index[i]] = found[i];
  return result;
}

}  // namespace xylem
