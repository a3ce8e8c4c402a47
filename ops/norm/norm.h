// SPDX-License-Identifier: Apache-2.0
// Kernels of the normalisations. Tensors are contiguous unless a layout says otherwise; gain, bias, mean, rstd and
// their gradients hold compute_type(x): f32, or f64 for f64. Undefined gain means 1, undefined bias 0.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

// y = (h - mean) * rstd * gain + bias over the last dimension, where h is x, or x + residual stored to `sum`.
// Without `mean` (RMS norm) nothing is subtracted.
struct RowNorm {
  Tensor x = {}, residual = {}, sum = {}, gain = {}, bias = {}, y = {}, mean = {}, rstd = {};
  double eps;
};
// dx = dsum + the gradient through the norm; dsum, dgain and dbias may be undefined.
struct RowNormGrad {
  Tensor dy, dsum = {}, x, gain, mean, rstd, dx, dgain, dbias;
  bool accumulate_gain, accumulate_bias;
};

// x seen as [outer, channels, inner] in memory order; channels-last tensors have inner == 1.
struct ChannelLayout {
  int64_t outer, channels, inner;
  int64_t per_channel() const { return outer * inner; }
};
struct BatchNorm {
  Tensor x, gain, bias, running_mean, running_var, y = {}, mean = {}, rstd = {};  // running_*: f32 or undefined
  ChannelLayout layout = {};
  bool training;
  double momentum, eps;
};
struct BatchNormGrad {
  Tensor dy, x, gain, mean, rstd, dx, dgain, dbias;
  bool accumulate_gain, accumulate_bias;
  ChannelLayout layout;
  bool training;
};

// x as [n, channels, inner]; mean and rstd [n, groups].
struct GroupNorm {
  Tensor x, gain, bias, y = {}, mean = {}, rstd = {};
  int64_t n, channels, inner, groups;
  double eps;
};
struct GroupNormGrad {
  Tensor dy, x, gain, mean, rstd, dx, dgain, dbias;
  bool accumulate_gain, accumulate_bias;
  int64_t n, channels, inner, groups;
};

namespace cpu {
void row_norm(const RowNorm& n);
void row_norm_backward(const RowNormGrad& n);
void batch_norm(const BatchNorm& n);
void batch_norm_backward(const BatchNormGrad& n);
void group_norm(const GroupNorm& n);
void group_norm_backward(const GroupNormGrad& n);
}  // namespace cpu
namespace cuda {
void row_norm(const RowNorm& n);
void row_norm_backward(const RowNormGrad& n);
void batch_norm(const BatchNorm& n);
void batch_norm_backward(const BatchNormGrad& n);
void group_norm(const GroupNorm& n);
void group_norm_backward(const GroupNormGrad& n);
}  // namespace cuda

}  // namespace xylem
