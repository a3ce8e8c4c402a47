// SPDX-License-Identifier: Apache-2.0
// Attention and rotary positions. Masks are always written out: the causal mode of ONNX's Attention is aligned to the
// top left, which is wrong as soon as there are more keys than queries.
#include <cmath>

#include "models/export/lower/lower.h"

namespace xylem::exporting {
namespace {

using Names = std::vector<std::string>;

constexpr double kMasked = -1e4;  // fits into fp16, and exp() of it is 0

std::string range(OnnxBuilder& onnx, const std::string& begin, const std::string& end) {
  return onnx.node("Range", {begin, end, onnx.scalar(1, i64)}, {}, i64);
}
std::string additive(OnnxBuilder& onnx, const std::string& visible) {
  return onnx.node("Where", {visible, onnx.scalar(0), onnx.scalar(kMasked)}, {}, f32);
}

// [1, 1, S, T]: query i of S sees the keys up to T - S + i.
std::string causal_mask(GraphBuilder& onnx, const TracedSize& queries, const TracedSize& keys) {
  if (queries.fixed() && keys.fixed()) {
    const int64_t s = queries.at[0], t = keys.at[0];
    Tensor mask = zeros({1, 1, s, t});
    for (int64_t i = 0; i < s; ++i)
      for (int64_t j = std::max<int64_t>(t - s + i + 1, 0); j < t; ++j) mask.data<float>()[i * t + j] = float(kMasked);
    return onnx.constant(mask, "");
  }
  std::string key = "causal mask";
  for (int i = 0; i < kTraces; ++i) key += " " + std::to_string(queries.at[i]) + "x" + std::to_string(keys.at[i]);
  return onnx.once(key, [&] {
    Fp32Island island(onnx);
    TracedSize first;
    for (int i = 0; i < kTraces; ++i) first.at[i] = keys.at[i] - queries.at[i];
    std::string end = onnx.scalar_of(onnx.sizes({keys}));
    std::string begin = first == TracedSize(0) ? onnx.scalar(0, i64) : onnx.scalar_of(onnx.sizes({first}));
    std::string columns = range(onnx, onnx.scalar(0, i64), end);
    std::string rows = queries == keys ? columns : range(onnx, begin, end);
    std::string visible = onnx.node("LessOrEqual", {columns, unsqueeze(onnx, rows, {1})}, {}, boolean);
    return unsqueeze(onnx, additive(onnx, visible), {0, 1});
  });
}

// [B, 1, S, T] of a decoder.
std::string decoder_mask(GraphBuilder& onnx) {
  return onnx.once("decoder mask", [&]() -> std::string {
    Fp32Island island(onnx);
    const DecoderContext& d = *onnx.decoder;
    if (d.fixed_cache) {  // key j holds position j
      std::string columns = onnx.constant(arange(d.max_length), "");
      std::string rows = unsqueeze(onnx, d.position_ids, {1, 3});
      return additive(onnx, onnx.node("LessOrEqual", {columns, rows}, {}, boolean));
    }
    auto length = [&](const std::string& tensor) {
      return onnx.node("Gather", {onnx.node("Shape", {tensor}, {}, i64), onnx.scalar(1, i64)}, {{"axis", int64_t(0)}},
                       i64);
    };
    std::string total = length(d.attention_mask);
    std::string past = onnx.node("Sub", {total, length("input_ids")});
    std::string columns = range(onnx, onnx.scalar(0, i64), total), rows = range(onnx, past, total);
    std::string causal = onnx.node("LessOrEqual", {columns, unsqueeze(onnx, rows, {1})}, {}, boolean);  // [S, T]
    std::string given = unsqueeze(onnx, onnx.cast(d.attention_mask, boolean), {1, 2});                  // [B, 1, 1, T]
    return additive(onnx, onnx.node("And", {given, causal}, {}, boolean));
  });
}

// Appends to the cache, or writes into it: `now` [B, Hk, S, D] -> all keys or values so far.
std::string through_cache(GraphBuilder& onnx, const std::string& now, const std::string& which) {
  DecoderContext& d = *onnx.decoder;
  const std::string layer = std::to_string(d.layers.size());
  const std::string past = "past_key_values." + layer + "." + which;
  std::string present = "present." + layer + "." + which;
  std::string all;
  if (!d.fixed_cache) {
    all = onnx.node("Concat", {past, now}, {{"axis", int64_t(2)}});
  } else if (has(onnx, "TensorScatter", 24)) {
    std::string first = onnx.once("first position", [&] {
      return onnx.node("Gather", {d.position_ids, onnx.scalar(0, i64)}, {{"axis", int64_t(1)}});
    });
    all = onnx.node("TensorScatter", {past, now, first}, {{"axis", int64_t(-2)}, {"mode", "linear"}});
  } else {
    std::string shape = onnx.node("Shape", {now}, {}, i64);
    std::string slots = onnx.node("Expand", {unsqueeze(onnx, d.position_ids, {1, 3}), shape}, {}, i64);
    all = onnx.node("ScatterElements", {past, slots, now}, {{"axis", int64_t(2)}});
  }
  GraphNode& made = onnx.last_node();
  onnx.graph.values.erase(made.outputs[0]);
  made.outputs[0] = present;  // an output of the graph, declared by the decoder
  onnx.graph.values[present] = {.name = present, .type = type::float32, .dims = {}, .shaped = false};
  return present;
}

// [B, Hk, T, D] -> [B, H, T, D]
std::string repeat_heads(OnnxBuilder& onnx, const std::string& x, int64_t heads, int64_t kv_heads, int64_t size) {
  if (heads == kv_heads) return x;
  std::string wide = onnx.node("Expand", {unsqueeze(onnx, x, {2}), onnx.ints({1, 1, heads / kv_heads, 1, 1})});
  return onnx.node("Reshape", {wide, onnx.ints({0, heads, -1, size})});
}

Names attention(OnnxBuilder& builder, const ExportedOp& op) {
  auto& onnx = dynamic_cast<GraphBuilder&>(builder);
  const TracedSize &queries = op.input_shapes[0][1], &keys = op.input_shapes[1][1];
  const TracedSize &heads = op.input_shapes[0][2], &kv_heads = op.input_shapes[1][2], &size = op.input_shapes[0][3];
  XY_CHECK(heads.fixed() && kv_heads.fixed() && size.fixed(), "heads and their size must not be dynamic");
  auto by_head = [&](int i) { return transpose(onnx, op.inputs[i], {0, 2, 1, 3}); };
  const bool causal = op.flag("causal");
  std::string q = by_head(0), k, v, mask;
  if (onnx.decoder) {
    XY_CHECK(causal && queries == keys, "only causal self-attention can be given a cache");
    k = through_cache(onnx, by_head(1), "key");
    v = through_cache(onnx, by_head(2), "value");
    onnx.decoder->layers.push_back({kv_heads.at[0], size.at[0]});
    mask = decoder_mask(onnx);
  } else {
    k = by_head(1);
    v = by_head(2);
    if (causal) mask = causal_mask(onnx, queries, keys);
  }
  const double scale = op.number("scale");
  std::string y;
  if (has(onnx, "Attention", 23)) {
    Names in{q, k, v};
    if (!mask.empty()) in.push_back(mask);
    y = onnx.node("Attention", in, {{"scale", scale}});
  } else {
    k = repeat_heads(onnx, k, heads.at[0], kv_heads.at[0], size.at[0]);
    v = repeat_heads(onnx, v, heads.at[0], kv_heads.at[0], size.at[0]);
    // Each operand carries half of the scale, so that fp16 products do not overflow.
    std::string half = onnx.scalar(std::sqrt(scale));
    q = onnx.node("Mul", {q, half});
    k = onnx.node("Mul", {transpose(onnx, k, {0, 1, 3, 2}), half});
    std::string scores = onnx.node("MatMul", {q, k});
    if (!mask.empty()) scores = onnx.node("Add", {scores, mask});
    y = onnx.node("MatMul", {onnx.node("Softmax", {scores}, {{"axis", int64_t(-1)}}), v});
  }
  if (!onnx.decoder && causal && queries.fixed() && keys.fixed() && queries.at[0] > keys.at[0]) {
    Tensor sees = ones({queries.at[0], 1});  // queries before the first key give 0
    sees.narrow(0, 0, queries.at[0] - keys.at[0]).zero_();
    y = onnx.node("Mul", {y, onnx.constant(sees, "")});
  }
  return {transpose(onnx, y, {0, 2, 1, 3})};
}

// cos and sin of position * base^(-2i/D): [S, D/2], or [B, S, D/2] in a decoder, with a 1 for the heads where `heads`.
struct Angles {
  std::string cos, sin;
};
Angles angles(GraphBuilder& onnx, const ExportedOp& op, bool heads) {
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
    const int64_t after = onnx.decoder ? 2 : 1;  // the dimensions of positions
    if (onnx.decoder) {
      positions = onnx.cast(onnx.decoder->position_ids, f32);
    } else if (length.fixed()) {
      Tensor p = empty({length.at[0]});
      for (int64_t i = 0; i < length.at[0]; ++i) p.data<float>()[i] = float(offset + i);
      positions = onnx.constant(p, "");
    } else {
      std::string count = range(onnx, onnx.scalar(0, i64), onnx.scalar_of(onnx.sizes({length})));
      if (offset) count = onnx.node("Add", {count, onnx.scalar(double(offset), i64)});
      positions = onnx.cast(count, f32);
    }
    positions = unsqueeze(onnx, positions, heads ? std::vector{after, after + 1} : std::vector{after});
    return onnx.node("Mul", {positions, onnx.constant(frequency, "")});
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
std::string for_each_sequence(GraphBuilder& onnx, const std::string& table, const ExportedOp& op) {
  if (onnx.decoder) return table;
  const TracedSize &batch = op.input_shapes[0][0], &length = op.input_shapes[0][1];
  std::string key = table + " for each of";
  for (int64_t n : batch.at) key += " " + std::to_string(n);
  return onnx.once(key, [&] {
    Fp32Island island(onnx);
    return onnx.node("Expand", {table, onnx.sizes({batch, length, TracedSize(op.input_shapes[0][3].at[0] / 2)})});
  });
}

// Pairs (i, i + D/2): [a, b] -> [a cos - b sin, b cos + a sin].
Names rotary(OnnxBuilder& builder, const ExportedOp& op) {
  auto& onnx = dynamic_cast<GraphBuilder&>(builder);
  const TracedSize& size = op.input_shapes[0][3];
  XY_CHECK(size.fixed(), "the size of a head must not be dynamic");
  const bool native = has(onnx, "RotaryEmbedding", 23);
  Angles at = angles(onnx, op, !native);
  if (op.flag("back")) at.sin = onnx.node("Neg", {at.sin});
  if (native) {
    std::string y =
        onnx.node("RotaryEmbedding", {transpose(onnx, op.inputs[0], {0, 2, 1, 3}), for_each_sequence(onnx, at.cos, op),
                                      for_each_sequence(onnx, at.sin, op)});
    return {transpose(onnx, y, {0, 2, 1, 3})};
  }
  const int64_t half = size.at[0] / 2;
  Names ab = onnx.nodes("Split", {op.inputs[0], onnx.ints({half, half})}, 2, {{"axis", int64_t(-1)}}, {f32, f32});
  std::string left = onnx.node("Sub", {onnx.node("Mul", {ab[0], at.cos}), onnx.node("Mul", {ab[1], at.sin})});
  std::string right = onnx.node("Add", {onnx.node("Mul", {ab[1], at.cos}), onnx.node("Mul", {ab[0], at.sin})});
  return {onnx.node("Concat", {left, right}, {{"axis", int64_t(-1)}})};
}

const bool registered = [] {
  register_onnx_lowering("attention", attention);
  register_onnx_lowering("rotary", rotary);
  return true;
}();

}  // namespace
}  // namespace xylem::exporting
