// SPDX-License-Identifier: Apache-2.0
#include "models/export/lower/cache.h"

#include "models/export/lower/lower.h"

namespace xylem::exporting {

std::string DecoderInputs::mask() {
  return onnx_->once("decoder mask", [&]() -> std::string {
    GraphBuilder& onnx = *onnx_;
    Fp32Island island(onnx);
    if (fixed_) {  // key j holds position j
      std::string columns = onnx.constant(arange(max_length_));
      std::string rows = onnx.unsqueeze(position_ids(), {1, 3});
      return onnx.additive_mask(onnx.node("LessOrEqual", {columns, rows}, {}, boolean));
    }
    auto length = [&](const std::string& tensor) {
      return onnx.node("Gather", {onnx.node("Shape", {tensor}, {}, i64), onnx.scalar(1, i64)}, {{"axis", int64_t(0)}},
                       i64);
    };
    std::string total = length("attention_mask");
    std::string past = onnx.node("Sub", {total, length("input_ids")});
    std::string columns = onnx.range(onnx.scalar(0, i64), total), rows = onnx.range(past, total);
    std::string causal = onnx.node("LessOrEqual", {columns, onnx.unsqueeze(rows, {1})}, {}, boolean);  // [S, T]
    std::string given = onnx.unsqueeze(onnx.cast("attention_mask", boolean), {1, 2});                  // [B, 1, 1, T]
    return onnx.additive_mask(onnx.node("And", {given, causal}, {}, boolean));
  });
}

std::string DecoderInputs::all_keys(const std::string& now, int64_t heads, int64_t size) {
  layers_.push_back({heads, size});
  return through_cache(now, "key");
}
std::string DecoderInputs::all_values(const std::string& now) { return through_cache(now, "value"); }

std::string DecoderInputs::through_cache(const std::string& now, const std::string& which) {
  GraphBuilder& onnx = *onnx_;
  const std::string layer = std::to_string(layers_.size() - 1);
  const std::string past = "past_key_values." + layer + "." + which;
  if (!fixed_) {
    onnx.node("Concat", {past, now}, {{"axis", int64_t(2)}});
  } else if (onnx.has("TensorScatter", 24)) {
    std::string first = onnx.once("first position", [&] {
      return onnx.node("Gather", {position_ids(), onnx.scalar(0, i64)}, {{"axis", int64_t(1)}});
    });
    Fp32Island island(onnx);  // TensorRT insists that the cache is an input as it stands, and inputs are float32
    onnx.node("TensorScatter", {past, now, first}, {{"axis", int64_t(-2)}, {"mode", "linear"}});
  } else {
    std::string shape = onnx.node("Shape", {now}, {}, i64);
    std::string slots = onnx.node("Expand", {onnx.unsqueeze(position_ids(), {1, 3}), shape}, {}, i64);
    onnx.node("ScatterElements", {past, slots, now}, {{"axis", int64_t(2)}});
  }
  return onnx.rename_last("present." + layer + "." + which);  // an output of the graph, declared by the decoder
}

}  // namespace xylem::exporting
