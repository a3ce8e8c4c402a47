// SPDX-License-Identifier: Apache-2.0
#include "core/autograd/view_lowering.h"

namespace xylem {
namespace {

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

}  // namespace

OnnxNames lower_reshape(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.reshape(op.inputs[0], op.input_shapes[0], op.output_shapes[0])};
}

OnnxNames lower_permute(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.transpose(op.inputs[0], op.integers("perm"))};
}

OnnxNames lower_slice(OnnxBuilder& onnx, const ExportedOp& op) {
  const int64_t dim = op.integer("dim");
  const TracedSize &begin = op.size("begin"), &end = op.size("end"), &size = op.input_shapes[0][dim];
  // In a decoder the first `seq` rows of a table of positions are those at position_ids.
  if (onnx.decoder() && dim == 0 && begin == TracedSize(0) && !end.fixed() && onnx.value_of(op.inputs[0]).defined())
    return {onnx.node("Gather", {op.inputs[0], onnx.decoder()->position_ids()}, {{"axis", int64_t(0)}})};
  auto position = [&](const TracedSize& at, bool is_end) {
    auto fixed = fixed_position(at, size, is_end);
    return fixed ? onnx.ints({*fixed}) : onnx.sizes({at});
  };
  return {onnx.node("Slice", {op.inputs[0], position(begin, false), position(end, true), onnx.ints({dim}),
                              onnx.ints({op.integer("step")})})};
}

// 1 leaves a dimension as it is.
OnnxNames lower_expand(OnnxBuilder& onnx, const ExportedOp& op) {
  const auto &from = op.input_shapes[0], &to = op.sizes("shape");
  std::vector<TracedSize> shape = to;
  const size_t lead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i)
    if (from[i] == to[lead + i]) shape[lead + i] = 1;
  return {onnx.node("Expand", {op.inputs[0], onnx.sizes(shape)})};
}

OnnxNames lower_split(OnnxBuilder& onnx, const ExportedOp& op) {
  return onnx.nodes("Split", {op.inputs[0], onnx.sizes(op.sizes("sizes"))}, int(op.output_types.size()),
                    {{"axis", op.integer("dim")}}, op.output_types);
}

OnnxNames lower_cat(OnnxBuilder& onnx, const ExportedOp& op) {
  OnnxNames parts;
  for (const std::string& in : op.inputs) parts.push_back(onnx.cast(in, op.output_types[0]));
  return {onnx.node("Concat", parts, {{"axis", op.integer("dim")}})};
}

OnnxNames lower_cast(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("Cast", {op.inputs[0]}, {{"to", int64_t(onnx_type(op.output_types[0]))}}, op.output_types[0])};
}

OnnxNames lower_sum_to(OnnxBuilder& onnx, const ExportedOp& op) {
  const auto &from = op.input_shapes[0], &to = op.sizes("shape");
  std::vector<int64_t> axes;
  const size_t lead = from.size() - to.size();
  for (size_t i = 0; i < from.size(); ++i)
    if (i < lead || !(from[i] == to[i - lead])) axes.push_back(int64_t(i));
  return {onnx.reshape(onnx.reduce("ReduceSum", op.inputs[0], axes, false), {}, to)};
}

}  // namespace xylem
