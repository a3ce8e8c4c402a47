// SPDX-License-Identifier: Apache-2.0
// Kernels of the losses. Tensors are contiguous; scalars and per-row results hold compute_type(logits).
#pragma once
#include "core/device/fault.h"
#include "core/tensor/tensor.h"

namespace xylem {

extern const Fault kTargetOutside;  // a target that is no class

struct CrossEntropy {
  Tensor logits, targets;                // [rows, classes], i64 [rows]
  Tensor lse = {};                       // [rows]: log of the sum of exponentials
  Tensor loss = {}, inverse_count = {};  // scalars; 1 / the number of targets that are not ignored, or 0
  Tensor grad = {}, dlogits = {};        // backward: gradient of the loss, result
  int64_t rows, classes, ignore_index;
  double smoothing;
};

namespace cpu {
void cross_entropy(const CrossEntropy& c);
void cross_entropy_backward(const CrossEntropy& c);
void mse(const Tensor& x, const Tensor& target, const Tensor& loss);
// dx = 2 (x - target) grad / n, dtarget = -dx; either may be undefined
void mse_backward(const Tensor& x, const Tensor& target, const Tensor& grad, const Tensor& dx, const Tensor& dtarget);
}  // namespace cpu
namespace cuda {
void cross_entropy(const CrossEntropy& c);
void cross_entropy_backward(const CrossEntropy& c);
void mse(const Tensor& x, const Tensor& target, const Tensor& loss);
void mse_backward(const Tensor& x, const Tensor& target, const Tensor& grad, const Tensor& dx, const Tensor& dtarget);
}  // namespace cuda

}  // namespace xylem
