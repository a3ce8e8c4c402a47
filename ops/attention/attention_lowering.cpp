// SPDX-License-Identifier: Apache-2.0
// Masks are always written out: the causal mode of ONNX's Attention is aligned to the top left, which is wrong as soon
// as there are more keys than queries.
#include "ops/attention/attention_lowering.h"

#include <cmath>

namespace xylem {
namespace {

// [1, 1, S, T]: query i of S sees the keys up to T - S + i.
std::string causal_mask(OnnxBuilder& onnx, const TracedSize& queries, const TracedSize& keys) {
  if (queries.fixed() && keys.fixed()) {
    const int64_t s = queries.at[0], t = keys.at[0];
    Tensor mask = zeros({1, 1, s, t});
    for (int64_t i = 0; i < s; ++i)
      for (int64_t j = std::max<int64_t>(t - s + i + 1, 0); j < t; ++j)
        mask.data<float>()[i * t + j] = float(OnnxBuilder::kMasked);
    return onnx.constant(mask);
  }
  std::string key = "causal mask";
  for (int i = 0; i < TracedSize::kTraces; ++i)
    key += " " + std::to_string(queries.at[i]) + "x" + std::to_string(keys.at[i]);
  return onnx.once(key, [&] {
    Fp32Island island(onnx);
    TracedSize first;
    for (int i = 0; i < TracedSize::kTraces; ++i) first.at[i] = keys.at[i] - queries.at[i];
    std::string end = onnx.scalar_of(onnx.sizes({keys}));
    std::string begin = first == TracedSize(0) ? onnx.scalar(0, i64) : onnx.scalar_of(onnx.sizes({first}));
    std::string columns = onnx.range(onnx.scalar(0, i64), end);
    std::string rows = queries == keys ? columns : onnx.range(begin, end);
    std::string visible = onnx.node("LessOrEqual", {columns, onnx.unsqueeze(rows, {1})}, {}, boolean);
    return onnx.unsqueeze(onnx.additive_mask(visible), {0, 1});
  });
}

// [B, Hk, T, D] -> [B, H, T, D]
std::string repeat_heads(OnnxBuilder& onnx, const std::string& x, int64_t heads, int64_t kv_heads, int64_t size) {
  if (heads == kv_heads) return x;
  std::string wide = onnx.node("Expand", {onnx.unsqueeze(x, {2}), onnx.ints({1, 1, heads / kv_heads, 1, 1})});
  return onnx.node("Reshape", {wide, onnx.ints({0, heads, -1, size})});
}

// cos and sin of position * base^(-2i/D): [S, D/2], or [B, S, D/2] in a decoder, with a 1 for the heads where `heads`.
struct Angles {
  std::string cos, sin;
};
Angles angles(OnnxBuilder& onnx, const ExportedOp& op, bool heads) {
  const TracedSize& length = op.input_shapes[0][1];
  const int64_t half = op.input_shapes[0][3].at[0] / 2, offset = op.integer("offset");
  const double base = op.number("base");
  Tensor frequency = empty({half});
  for (int64_t i = 0; i < half; ++i)
    frequency.data<float>()[i] = float(1 / std::pow(base, double(2 * i) / double(2 * half)));
  std::string key = "rotary " + std::to_string(base) + " " + std::to_string(offset) + " " + std::to_string(half);
  for (int64_t n : length.at) key += " " + std::to_string(n);
  std::string angle = onnx.once(key, [&] {
    Fp32Island island(onnx);
    std::string positions;
    const int64_t after = onnx.decoder() ? 2 : 1;  // the dimensions of positions
    if (onnx.decoder()) {
      positions = onnx.cast(onnx.decoder()->position_ids(), f32);
    } else if (length.fixed()) {
      Tensor p = empty({length.at[0]});
      for (int64_t i = 0; i < length.at[0]; ++i) p.data<float>()[i] = float(offset + i);
      positions = onnx.constant(p);
    } else {
      std::string count = onnx.range(onnx.scalar(0, i64), onnx.scalar_of(onnx.sizes({length})));
      if (offset) count = onnx.node("Add", {count, onnx.scalar(double(offset), i64)});
      positions = onnx.cast(count, f32);
    }
    positions = onnx.unsqueeze(positions, heads ? std::vector{after, after + 1} : std::vector{after});
    return onnx.node("Mul", {positions, onnx.constant(frequency)});
  });
  auto part = [&](const char* f) {
    return onnx.once(std::string(f) + " of " + key, [&] {
      Fp32Island island(onnx);
      return onnx.node(f, {angle});
    });
  };
  return {part("Cos"), part("Sin")};
}

// RotaryEmbedding wants the tables once for each sequence: [B, S, D/2].
std::string for_each_sequence(OnnxBuilder& onnx, const std::string& table, const ExportedOp& op) {
  if (onnx.decoder()) return table;
  const TracedSize &batch = op.input_shapes[0][0], &length = op.input_shapes[0][1];
  std::string key = table + " for each of";
  for (int64_t n : batch.at) key += " " + std::to_string(n);
  return onnx.once(key, [&] {
    Fp32Island island(onnx);
    return onnx.node("Expand", {table, onnx.sizes({batch, length, TracedSize(op.input_shapes[0][3].at[0] / 2)})});
  });
}

}  // namespace

OnnxNames lower_attention(OnnxBuilder& onnx, const ExportedOp& op) {
  const TracedSize &queries = op.input_shapes[0][1], &keys = op.input_shapes[1][1];
  const TracedSize &heads = op.input_shapes[0][2], &kv_heads = op.input_shapes[1][2], &size = op.input_shapes[0][3];
  XY_CHECK(heads.fixed() && kv_heads.fixed() && size.fixed(), "heads and their size must not be dynamic");
  auto by_head = [&](int i) { return onnx.transpose(op.inputs[i], {0, 2, 1, 3}); };
  const bool causal = op.flag("causal");
  std::string q = by_head(0), k, v, mask;
  if (onnx.decoder()) {
    XY_CHECK(causal && queries == keys, "only causal self-attention can be given a cache");
    k = onnx.decoder()->all_keys(by_head(1), kv_heads.at[0], size.at[0]);
    v = onnx.decoder()->all_values(by_head(2));
    mask = onnx.decoder()->mask();
  } else {
    k = by_head(1);
    v = by_head(2);
    if (causal) mask = causal_mask(onnx, queries, keys);
  }
  const double scale = op.number("scale");
  std::string y;
  const bool runs = onnx.target().any_attention || (size.at[0] >= 16 && size.at[0] <= 256 && size.at[0] % 8 == 0);
  if (runs && onnx.has("Attention", 23)) {
    OnnxNames in{q, k, v};
    if (!mask.empty()) in.push_back(mask);
    y = onnx.node("Attention", in, {{"scale", scale}});
  } else {
    k = repeat_heads(onnx, k, heads.at[0], kv_heads.at[0], size.at[0]);
    v = repeat_heads(onnx, v, heads.at[0], kv_heads.at[0], size.at[0]);
    // Each operand carries half of the scale, so that fp16 products do not overflow.
    std::string half = onnx.scalar(std::sqrt(scale));
    q = onnx.node("Mul", {q, half});
    k = onnx.node("Mul", {onnx.transpose(k, {0, 1, 3, 2}), half});
    std::string scores = onnx.node("MatMul", {q, k});
    if (!mask.empty()) scores = onnx.node("Add", {scores, mask});
    y = onnx.node("MatMul", {onnx.node("Softmax", {scores}, {{"axis", int64_t(-1)}}), v});
  }
  if (!onnx.decoder() && causal && queries.fixed() && keys.fixed() && queries.at[0] > keys.at[0]) {
    Tensor sees = ones({queries.at[0], 1});  // queries before the first key give 0
    sees.narrow(0, 0, queries.at[0] - keys.at[0]).zero_();
    y = onnx.node("Mul", {y, onnx.constant(sees)});
  }
  return {onnx.transpose(y, {0, 2, 1, 3})};
}

// Pairs (i, i + D/2): [a, b] -> [a cos - b sin, b cos + a sin].
OnnxNames lower_rotary(OnnxBuilder& onnx, const ExportedOp& op) {
  const TracedSize& size = op.input_shapes[0][3];
  XY_CHECK(size.fixed(), "the size of a head must not be dynamic");
  const bool native = onnx.has("RotaryEmbedding", 23);
  Angles at = angles(onnx, op, !native);
  if (op.flag("back")) at.sin = onnx.node("Neg", {at.sin});
  if (native) {
    std::string y =
        onnx.node("RotaryEmbedding", {onnx.transpose(op.inputs[0], {0, 2, 1, 3}), for_each_sequence(onnx, at.cos, op),
                                      for_each_sequence(onnx, at.sin, op)});
    return {onnx.transpose(y, {0, 2, 1, 3})};
  }
  const int64_t half = size.at[0] / 2;
  OnnxNames ab = onnx.nodes("Split", {op.inputs[0], onnx.ints({half, half})}, 2, {{"axis", int64_t(-1)}}, {f32, f32});
  std::string left = onnx.node("Sub", {onnx.node("Mul", {ab[0], at.cos}), onnx.node("Mul", {ab[1], at.sin})});
  std::string right = onnx.node("Add", {onnx.node("Mul", {ab[1], at.cos}), onnx.node("Mul", {ab[0], at.sin})});
  return {onnx.node("Concat", {left, right}, {{"axis", int64_t(-1)}})};
}

}  // namespace xylem
