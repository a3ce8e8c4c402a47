// SPDX-License-Identifier: Apache-2.0
// Views, gathering and scattering, reductions.
#include <algorithm>

#include "models/export/lower/lower.h"

namespace xylem::exporting {
namespace {

using Names = std::vector<std::string>;

// The end of a slice that reaches the end of its dimension. TensorRT reads 32-bit positions.
constexpr int64_t kToTheEnd = (int64_t(1) << 31) - 2;

// A position on a dimension of `size`: a number, counted from the end where only that is fixed.
std::optional<int64_t> fixed_position(const TracedSize& at, const TracedSize& size, bool is_end) {
  if (is_end && at == size && !size.fixed()) return kToTheEnd;
  if (at.fixed()) return at.at[0];
  TracedSize back;
  for (int t = 0; t < TracedSize::kTraces; ++t) back.at[t] = at.at[t] - size.at[t];
  if (back.fixed() && back.at[0] < 0) return back.at[0];
  return {};
}

Names slice(OnnxBuilder& onnx, const ExportedOp& op) {
  const int64_t dim = op.integer("dim");
  auto* builder = dynamic_cast<GraphBuilder*>(&onnx);
  const TracedSize &begin = op.size("begin"), &end = op.size("end"), &size = op.input_shapes[0][dim];
  // In a decoder the first `seq` rows of a table of positions are those at position_ids.
  if (builder && builder->decoder && dim == 0 && begin == TracedSize(0) && !end.fixed() &&
      onnx.value_of(op.inputs[0]).defined())
    return {onnx.node("Gather", {op.inputs[0], builder->decoder->position_ids}, {{"axis", int64_t(0)}})};
  auto position = [&](const TracedSize& at, bool is_end) {
    auto fixed = fixed_position(at, size, is_end);
    return fixed ? onnx.ints({*fixed}) : onnx.sizes({at});
  };
  return {onnx.node("Slice", {op.inputs[0], position(begin, false), position(end, true), onnx.ints({dim}),
                              onnx.ints({op.integer("step")})})};
}

// 1 leaves a dimension as it is.
Names expand(OnnxBuilder& onnx, const ExportedOp& op) {
  const auto &from = op.input_shapes[0], &to = op.sizes("shape");
  std::vector<TracedSize> shape = to;
  const size_t lead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i)
    if (from[i] == to[lead + i]) shape[lead + i] = 1;
  return {onnx.node("Expand", {op.inputs[0], onnx.sizes(shape)})};
}

Names split(OnnxBuilder& onnx, const ExportedOp& op) {
  return onnx.nodes("Split", {op.inputs[0], onnx.sizes(op.sizes("sizes"))}, int(op.output_types.size()),
                    {{"axis", op.integer("dim")}}, op.output_types);
}

Names cat(OnnxBuilder& onnx, const ExportedOp& op) {
  Names parts;
  for (const std::string& in : op.inputs) parts.push_back(onnx.cast(in, op.output_types[0]));
  return {onnx.node("Concat", parts, {{"axis", op.integer("dim")}})};
}

void add_reduction(const char* op, const char* onnx_op) {
  register_onnx_lowering(op, [onnx_op](OnnxBuilder& onnx, const ExportedOp& o) -> Names {
    if (o.rank(0) == 0) return {onnx.node("Identity", {o.inputs[0]})};
    return {reduce(onnx, onnx_op, o.inputs[0], o.integers("dims"), o.flag("keepdim"))};
  });
}

Names sum_to(OnnxBuilder& onnx, const ExportedOp& op) {
  const auto &from = op.input_shapes[0], &to = op.sizes("shape");
  std::vector<int64_t> axes;
  const size_t lead = from.size() - to.size();
  for (size_t i = 0; i < from.size(); ++i)
    if (i < lead || !(from[i] == to[i - lead])) axes.push_back(int64_t(i));
  return {reshape_to(onnx, reduce(onnx, "ReduceSum", op.inputs[0], axes, false), {}, to)};
}

Names scatter_add(OnnxBuilder& onnx, const ExportedOp& op) {
  XY_CHECK(onnx.opset() >= 16, "adding into scattered places needs opset 16, not ", onnx.opset());
  return {onnx.node("ScatterElements", {op.inputs[0], op.inputs[1], op.inputs[2]},
                    {{"axis", op.integer("dim")}, {"reduction", "add"}})};
}

// Operations that move data and change nothing.
void add_copy(const char* op) {
  register_onnx_lowering(
      op, [](OnnxBuilder& onnx, const ExportedOp& o) -> Names { return {onnx.node("Identity", {o.inputs[0]})}; });
}

const bool registered = [] {
  add_copy("contiguous");
  add_copy("to_device");
  add_copy("recompute");
  register_onnx_lowering("reshape", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {reshape_to(onnx, op.inputs[0], op.input_shapes[0], op.output_shapes[0])};
  });
  register_onnx_lowering("permute", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {transpose(onnx, op.inputs[0], op.integers("perm"))};
  });
  register_onnx_lowering("slice", slice);
  register_onnx_lowering("expand", expand);
  register_onnx_lowering("split", split);
  register_onnx_lowering("cat", cat);
  register_onnx_lowering("sum_to", sum_to);
  add_reduction("sum", "ReduceSum");
  add_reduction("mean", "ReduceMean");
  add_reduction("amax", "ReduceMax");
  add_reduction("amin", "ReduceMin");
  register_onnx_lowering("argmax", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("ArgMax", {op.inputs[0]},
                      {{"axis", op.integer("dim")}, {"keepdims", int64_t(op.flag("keepdim"))}}, i64)};
  });
  register_onnx_lowering("topk", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return onnx.nodes("TopK", {op.inputs[0], onnx.sizes({op.size("k")})}, 2, {{"axis", op.integer("dim")}},
                      {op.output_types[0], i64});
  });
  register_onnx_lowering("softmax", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Softmax", {op.inputs[0]}, {{"axis", op.integer("dim")}})};
  });
  register_onnx_lowering("log_softmax", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("LogSoftmax", {op.inputs[0]}, {{"axis", op.integer("dim")}})};
  });
  register_onnx_lowering("embedding", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Gather", {op.inputs[1], op.inputs[0]}, {{"axis", int64_t(0)}})};
  });
  register_onnx_lowering("index_select", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Gather", {op.inputs[0], op.inputs[1]}, {{"axis", op.integer("dim")}})};
  });
  register_onnx_lowering("gather", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("GatherElements", {op.inputs[0], op.inputs[1]}, {{"axis", op.integer("dim")}})};
  });
  register_onnx_lowering("scatter_add", scatter_add);
  return true;
}();

}  // namespace
}  // namespace xylem::exporting
