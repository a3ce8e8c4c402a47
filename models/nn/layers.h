// SPDX-License-Identifier: Apache-2.0
// Layers with PyTorch's parameter names, shapes and default initialisation.
#pragma once
#include <array>
#include <cstdint>

#include "models/nn/module.h"
#include "ops/ops.h"

namespace xylem {

// x [.., in] -> [.., out]; weight [out, in], bias [out]. Both uniform in +-1/sqrt(in).
struct Linear : Module {
  Tensor weight, bias;
  Linear(int64_t in, int64_t out, bool with_bias = true);
  XY_MEMBERS(weight, bias)
  Tensor operator()(const Tensor& x) const { return linear(x, weight, bias); }
};

struct ConvOptions {
  int stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true;
};

// x [N, in, H, W] -> [N, out, H', W']; weight [out, in/groups, kernel, kernel]. Uniform in +-1/sqrt(fan in).
struct Conv2d : Module {
  Tensor weight, bias;
  ConvArgs args;
  Conv2d(int64_t in, int64_t out, int kernel, const ConvOptions& options = {});
  XY_MEMBERS(weight, bias)
  Tensor operator()(const Tensor& x) const { return conv2d(x, weight, bias, args); }
};

// x [N, in, H, W] -> [N, out, H', W'] with H' = (H-1)*stride - 2*padding + dilation*(kernel-1) + output_padding + 1;
// weight [in, out/groups, kernel, kernel].
struct ConvTranspose2d : Module {
  Tensor weight, bias;
  ConvArgs args;
  int output_padding;
  ConvTranspose2d(int64_t in, int64_t out, int kernel, const ConvOptions& options = {}, int output_padding = 0);
  XY_MEMBERS(weight, bias)
  Tensor operator()(const Tensor& x) const {
    return conv_transpose2d(x, weight, bias, args, {output_padding, output_padding});
  }
};

// Indices [..] -> [.., width]; weight [count, width], standard normal.
struct Embedding : Module {
  Tensor weight;
  Embedding(int64_t count, int64_t width);
  XY_MEMBERS(weight)
  Tensor operator()(const Tensor& indices) const { return embedding(indices, weight); }
};

// Normalisation layers keep their tensors in f32 when the model becomes 16-bit.
struct Norm : Module {
  bool keeps_f32() const override { return true; }
};

// Over the last dimension, of `width` values.
struct LayerNorm : Norm {
  Tensor weight, bias;
  double eps;
  explicit LayerNorm(int64_t width, double eps = 1e-5, bool with_bias = true);
  XY_MEMBERS(weight, bias)
  Tensor operator()(const Tensor& x) const { return layer_norm(x, weight, bias, eps); }
};

struct RmsNorm : Norm {
  Tensor weight;
  double eps;
  explicit RmsNorm(int64_t width, double eps = 1e-5);
  XY_MEMBERS(weight)
  Tensor operator()(const Tensor& x) const { return rms_norm(x, weight, eps); }
};

// x [N, channels, ..]. Training normalises with the batch and moves the running statistics by `momentum`.
struct BatchNorm2d : Norm {
  Tensor weight, bias;
  Buffer running_mean, running_var;
  double eps, momentum;
  explicit BatchNorm2d(int64_t channels, double eps = 1e-5, double momentum = 0.1);
  XY_MEMBERS(weight, bias, running_mean, running_var)
  Tensor operator()(const Tensor& x) const {
    return batch_norm(x, weight, bias, running_mean, running_var, training(), momentum, eps);
  }
};

struct GroupNorm : Norm {
  Tensor weight, bias;
  int groups;
  double eps;
  GroupNorm(int groups, int64_t channels, double eps = 1e-5);
  XY_MEMBERS(weight, bias)
  Tensor operator()(const Tensor& x) const { return group_norm(x, groups, weight, bias, eps); }
};

// Zeroes each value with probability p while training.
struct Dropout : Module {
  double p;
  explicit Dropout(double p = 0.5) : p(p) {}
  Tensor operator()(const Tensor& x) const { return p > 0 && training() ? dropout(x, p) : x; }
};

struct SelfAttentionOptions {
  bool causal = false, bias = true;
};

// Multi-head self-attention, x [B, S, width] -> [B, S, width]; qkv.weight [3*width, width] holds the rows of q, k, v.
struct SelfAttention : Module {
  Linear qkv, proj;
  int64_t heads;
  bool causal;
  SelfAttention(int64_t width, int64_t heads, const SelfAttentionOptions& options = {});
  XY_MEMBERS(qkv, proj)
  Tensor operator()(const Tensor& x) const;
};

// Attention over packed projections [B, S, 3*width] -> [B, S, width].
Tensor packed_attention(const Tensor& qkv, int64_t heads, bool causal);

}  // namespace xylem
