// SPDX-License-Identifier: Apache-2.0
#include "models/nn/layers.h"

#include <cmath>

#include "models/nn/init.h"

namespace xylem {
namespace {

// He et al. 2015 with a = sqrt(5), which is uniform in +-1/sqrt(fan in).
Tensor uniform_parameter(const Shape& shape, int64_t fan_in,
                         const std::source_location& layer = std::source_location::current()) {
  Tensor t = init::weight(shape);
  if (!init::detail::skips()) init::uniform(t, fan_in > 0 ? 1 / std::sqrt(double(fan_in)) : 0);
  return parameter(t, layer);
}

Tensor constant(int64_t size, double value) { return full({size}, value, f32, init::device()); }
Tensor constant_parameter(int64_t size, double value,
                          const std::source_location& layer = std::source_location::current()) {
  return parameter(constant(size, value), layer);
}

ConvArgs conv_args(const ConvOptions& o, int64_t in, int64_t out) {
  XY_CHECK(o.groups > 0 && in % o.groups == 0 && out % o.groups == 0, "a convolution from ", in, " to ", out,
           " channels cannot have ", o.groups, " groups");
  return {.stride = {o.stride, o.stride},
          .padding = {o.padding, o.padding},
          .dilation = {o.dilation, o.dilation},
          .groups = o.groups};
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias) : weight(uniform_parameter({out, in}, in)) {
  if (with_bias) bias = uniform_parameter({out}, in);
}

Conv2d::Conv2d(int64_t in, int64_t out, int kernel, const ConvOptions& options) : args(conv_args(options, in, out)) {
  int64_t per_group = in / options.groups, fan_in = per_group * kernel * kernel;
  weight = uniform_parameter({out, per_group, kernel, kernel}, fan_in);
  if (options.bias) bias = uniform_parameter({out}, fan_in);
}

ConvTranspose2d::ConvTranspose2d(int64_t in, int64_t out, int kernel, const ConvOptions& options, int output_padding)
    : args(conv_args(options, in, out)), output_padding(output_padding) {
  int64_t per_group = out / options.groups, fan_in = per_group * kernel * kernel;
  weight = uniform_parameter({in, per_group, kernel, kernel}, fan_in);
  if (options.bias) bias = uniform_parameter({out}, fan_in);
}

Embedding::Embedding(int64_t count, int64_t width) : weight(parameter(init::weight({count, width}))) {
  if (!init::detail::skips()) init::normal(weight, 1);
}

LayerNorm::LayerNorm(int64_t width, double eps, bool with_bias) : weight(constant_parameter(width, 1)), eps(eps) {
  if (with_bias) bias = constant_parameter(width, 0);
}

RmsNorm::RmsNorm(int64_t width, double eps) : weight(constant_parameter(width, 1)), eps(eps) {}

BatchNorm2d::BatchNorm2d(int64_t channels, double eps, double momentum)
    : weight(constant_parameter(channels, 1)),
      bias(constant_parameter(channels, 0)),
      running_mean{constant(channels, 0)},
      running_var{constant(channels, 1)},
      eps(eps),
      momentum(momentum) {}

void use_sync_batch_norm(Module& module, const Group& group) {
  for (auto& [name, part] : module.modules())
    if (auto* norm = dynamic_cast<BatchNorm2d*>(part)) norm->sync = group;
}

GroupNorm::GroupNorm(int groups, int64_t channels, double eps)
    : weight(constant_parameter(channels, 1)), bias(constant_parameter(channels, 0)), groups(groups), eps(eps) {
  XY_CHECK(groups > 0 && channels % groups == 0, "GroupNorm: ", channels, " channels cannot form ", groups, " groups");
}

// q [B, S, H, D], k v [B, T, Hk, D], as the composition that attention() stands for.
Tensor AttentionProducts::operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionArgs& args) const {
  Tensor a = quantized(q, q_quantizer), b = quantized(k, k_quantizer), c = quantized(v, v_quantizer);
  if (!p_quantizer || !p_quantizer.on) return attention(a, b, c, args);
  const int64_t batch = a.size(0), rows = a.size(1), heads = a.size(2), size = a.size(3);
  const int64_t columns = b.size(1), shared = heads / b.size(2);
  auto by_head = [&](const Tensor& t) {
    Tensor each = t.transpose(1, 2);  // [B, Hk, T, D]
    if (shared == 1) return each;
    return each.unsqueeze(2).expand({batch, t.size(2), shared, columns, size}).reshape({batch, heads, columns, size});
  };
  Tensor scores = matmul(a.transpose(1, 2), by_head(b).transpose(-2, -1)) * args.scale.value_or(1 / std::sqrt(size));
  if (args.causal) {
    Tensor row = arange(rows, i64, q.device()).unsqueeze(1) + (columns - rows);
    Tensor hidden = lt(row, arange(columns, i64, q.device()));
    scores = where(hidden, full({}, -1e4, scores.dtype(), q.device()), scores);
  }
  return matmul(quantized(softmax(scores), p_quantizer), by_head(c)).transpose(1, 2);
}

Tensor packed_attention(const Tensor& qkv, int64_t heads, bool causal, const AttentionProducts& products) {
  int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3;
  Tensors parts = qkv.split(width, -1);
  for (Tensor& t : parts) t = t.reshape({batch, length, heads, width / heads});
  return products(parts[0], parts[1], parts[2], {.causal = causal}).reshape({batch, length, width});
}

SelfAttention::SelfAttention(int64_t width, int64_t heads, const SelfAttentionOptions& options)
    : qkv(width, 3 * width, options.bias), proj(width, width, options.bias), heads(heads), causal(options.causal) {
  XY_CHECK(heads > 0 && width % heads == 0, "SelfAttention: a width of ", width, " cannot be split into ", heads,
           " heads");
}

Tensor SelfAttention::operator()(const Tensor& x) const {
  return proj(packed_attention(qkv(x), heads, causal, products));
}

}  // namespace xylem
