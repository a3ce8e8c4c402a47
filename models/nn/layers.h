// SPDX-License-Identifier: Apache-2.0
// Layers with PyTorch's parameter names, shapes and default initialisation.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "distributed/parallel/sync_batch_norm.h"
#include "models/nn/quantizer.h"
#include "ops/ops.h"

namespace xylem {

// x [.., in] -> [.., out]; weight [out, in], bias [out]. Both uniform in +-1/sqrt(in).
struct Linear : Module {
  Tensor weight, bias;
  QuantizerSlot input_quantizer, weight_quantizer;
  Linear(int64_t in, int64_t out, bool with_bias = true);
  XY_MEMBERS(weight, bias, input_quantizer, weight_quantizer)
  Tensor operator()(const Tensor& x) const {
    return linear(quantized(x, input_quantizer), quantized(weight, weight_quantizer), bias);
  }
};

struct ConvOptions {
  int stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true;
};

// x [N, in, H, W] -> [N, out, H', W']; weight [out, in/groups, kernel, kernel]. Uniform in +-1/sqrt(fan in).
struct Conv2d : Module {
  Tensor weight, bias;
  QuantizerSlot input_quantizer, weight_quantizer;
  ConvArgs args;
  Conv2d(int64_t in, int64_t out, int kernel, const ConvOptions& options = {});
  XY_MEMBERS(weight, bias, input_quantizer, weight_quantizer)
  Tensor operator()(const Tensor& x) const {
    return conv2d(quantized(x, input_quantizer), quantized(weight, weight_quantizer), bias, args);
  }
};

// x [N, in, H, W] -> [N, out, H', W'] with H' = (H-1)*stride - 2*padding + dilation*(kernel-1) + output_padding + 1;
// weight [in, out/groups, kernel, kernel].
struct ConvTranspose2d : Module {
  Tensor weight, bias;
  QuantizerSlot input_quantizer, weight_quantizer;
  ConvArgs args;
  int output_padding;
  ConvTranspose2d(int64_t in, int64_t out, int kernel, const ConvOptions& options = {}, int output_padding = 0);
  XY_MEMBERS(weight, bias, input_quantizer, weight_quantizer)
  Tensor operator()(const Tensor& x) const {
    return conv_transpose2d(quantized(x, input_quantizer), quantized(weight, weight_quantizer), bias, args,
                            {output_padding, output_padding});
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

// x [N, channels, ..]. Training normalises with the batch, or the batches of all ranks of `sync` together, and moves
// the running statistics by `momentum`, unless it is frozen. Once folded into the layer before it, it has no tensors
// and changes nothing.
struct BatchNorm2d : Norm {
  Tensor weight, bias;
  Buffer running_mean, running_var;
  double eps, momentum;
  bool frozen = false;
  std::optional<Group> sync = {};
  explicit BatchNorm2d(int64_t channels, double eps = 1e-5, double momentum = 0.1);
  XY_MEMBERS(weight, bias, running_mean, running_var)
  Tensor operator()(const Tensor& x) const {
    if (!running_mean.tensor.defined()) return x;
    if (sync && training() && !frozen)
      return sync_batch_norm(x, weight, bias, running_mean, running_var, *sync, momentum, eps);
    return batch_norm(x, weight, bias, running_mean, running_var, training() && !frozen, momentum, eps);
  }
};

// Every BatchNorm2d of the module normalises over the group from here on.
void use_sync_batch_norm(Module& module, const Group& group);

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

// Operations without parameters that have a place for quantizers: the sum of a branch and what skips it, a product of
// matrices, average pooling, and the two products of attention.
struct Add : Module {
  QuantizerSlot branch_quantizer, skip_quantizer;
  XY_MEMBERS(branch_quantizer, skip_quantizer)
  Tensor operator()(const Tensor& branch, const Tensor& skip) const {
    return quantized(branch, branch_quantizer) + quantized(skip, skip_quantizer);
  }
};

struct MatMul : Module {
  QuantizerSlot a_quantizer, b_quantizer;
  XY_MEMBERS(a_quantizer, b_quantizer)
  Tensor operator()(const Tensor& a, const Tensor& b) const {
    return matmul(quantized(a, a_quantizer), quantized(b, b_quantizer));
  }
};

struct AvgPool2d : Module {
  QuantizerSlot input_quantizer;
  PoolArgs args;
  explicit AvgPool2d(const PoolArgs& args = {}) : args(args) {}
  XY_MEMBERS(input_quantizer)
  Tensor operator()(const Tensor& x) const { return avg_pool2d(quantized(x, input_quantizer), args); }
};

// [N, C, H, W] -> [N, C]
struct GlobalAvgPool : Module {
  QuantizerSlot input_quantizer;
  XY_MEMBERS(input_quantizer)
  Tensor operator()(const Tensor& x) const {
    return adaptive_avg_pool2d(quantized(x, input_quantizer), {1, 1}).flatten(1);
  }
};

// As attention(); once the probabilities are quantized it is computed product by product.
struct AttentionProducts : Module {
  QuantizerSlot q_quantizer, k_quantizer, v_quantizer, p_quantizer;
  XY_MEMBERS(q_quantizer, k_quantizer, v_quantizer, p_quantizer)
  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& args = {}) const;
};

struct SelfAttentionOptions {
  bool causal = false, bias = true;
};

// Multi-head self-attention, x [B, S, width] -> [B, S, width]; qkv.weight [3*width, width] holds the rows of q, k, v.
struct SelfAttention : Module {
  Linear qkv, proj;
  AttentionProducts products;
  int64_t heads;
  bool causal;
  SelfAttention(int64_t width, int64_t heads, const SelfAttentionOptions& options = {});
  XY_MEMBERS(qkv, products, proj)
  Tensor operator()(const Tensor& x) const;
};

// Attention over packed projections [B, S, 3*width] -> [B, S, width].
Tensor packed_attention(const Tensor& qkv, int64_t heads, bool causal, const AttentionProducts& products = {});

}  // namespace xylem
