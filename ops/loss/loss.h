// SPDX-License-Identifier: Apache-2.0
// Kernels of the losses. Tensors are contiguous; scalars and per-row results hold compute_type(logits).
#pragma once
#include "core/device/fault.h"
#include "core/tensor/tensor.h"
#include "ops/ops.h"

namespace xylem {

extern const Fault kTargetOutside;  // a target that is no class

struct CrossEntropy {
  Tensor logits = {}, targets = {};      // [rows, classes], i64 [rows]
  Tensor lse = {}, row_loss = {};        // [rows]: log of the sum of exponentials; what the row adds to the sum
  Tensor loss = {}, inverse_count = {};  // scalars; what the sum is multiplied by: 1 / the number of targets that are
                                         // not ignored (0 without any), or 1 for LossReduction::sum
  Tensor grad = {}, dlogits = {};        // gradient of the loss, and of the logits
  int64_t rows, classes;
  CrossEntropyArgs args;
};

Attrs cross_entropy_attrs(const CrossEntropyArgs& args);
// The loss in differentiable operations, given inverse_count.
Tensor cross_entropy_composition(const Tensor& logits, const Tensor& targets, const Tensor& inverse_count,
                                 const CrossEntropyArgs& args);
// Throws naming what does not fit: `shape` and `dtype` are those of the logits.
void check_cross_entropy(const Shape& shape, DType dtype, Device device, const Tensor& targets,
                         const CrossEntropyArgs& args);

// linear_cross_entropy() with a limit of its own on the bytes of logits that exist at a time.
Tensor linear_cross_entropy_within(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                                   const CrossEntropyArgs& args, int64_t held_bytes);

namespace cpu {
// logits, targets -> row_loss, and what is defined of lse and dlogits. dlogits, which may be the logits, becomes the
// gradient of the sum of the rows' losses.
void cross_entropy_rows(const CrossEntropy& c);
// row_loss, targets -> loss, inverse_count
void cross_entropy_total(const CrossEntropy& c);
// logits, targets, lse, inverse_count, grad -> dlogits
void cross_entropy_backward(const CrossEntropy& c);
void mse(const Tensor& x, const Tensor& target, const Tensor& loss);
// dx = 2 (x - target) grad / n, dtarget = -dx; either may be undefined
void mse_backward(const Tensor& x, const Tensor& target, const Tensor& grad, const Tensor& dx, const Tensor& dtarget);
}  // namespace cpu
namespace cuda {
void cross_entropy_rows(const CrossEntropy& c);
void cross_entropy_total(const CrossEntropy& c);
void cross_entropy_backward(const CrossEntropy& c);
void mse(const Tensor& x, const Tensor& target, const Tensor& loss);
void mse_backward(const Tensor& x, const Tensor& target, const Tensor& grad, const Tensor& dx, const Tensor& dtarget);
}  // namespace cuda

}  // namespace xylem
