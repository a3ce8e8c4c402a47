// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/norm_lowering.h"

namespace xylem {
namespace {

std::string or_filled(OnnxBuilder& onnx, const std::string& given, int64_t size, double value) {
  return given.empty() ? onnx.constant(full({size}, value)) : given;
}
int64_t last_size(const ExportedOp& op) {
  const TracedSize& s = op.input_shapes[0].back();
  XY_CHECK(s.fixed(), "the normalised dimension must not be dynamic");
  return s.at[0];
}

std::string layer_norm(OnnxBuilder& onnx, const std::string& x, const std::string& gain, const std::string& bias,
                       const ExportedOp& op) {
  std::string scale = or_filled(onnx, gain, last_size(op), 1);
  if (onnx.opset() >= 17) {
    OnnxNames in{x, scale};
    if (!bias.empty()) in.push_back(bias);
    return onnx.node("LayerNormalization", in,
                     {{"axis", int64_t(-1)}, {"epsilon", op.number("eps")}, {"stash_type", int64_t(1)}});
  }
  Fp32Island statistics(onnx);
  std::string centred = onnx.node("Sub", {x, onnx.reduce("ReduceMean", x, {-1}, true)});
  std::string variance = onnx.reduce("ReduceMean", onnx.node("Mul", {centred, centred}), {-1}, true);
  std::string deviation = onnx.node("Sqrt", {onnx.node("Add", {variance, onnx.scalar(op.number("eps"))})});
  std::string y = onnx.node("Mul", {onnx.node("Div", {centred, deviation}), scale});
  return bias.empty() ? y : onnx.node("Add", {y, bias});
}

std::string rms_norm(OnnxBuilder& onnx, const std::string& x, const std::string& gain, const ExportedOp& op) {
  std::string scale = or_filled(onnx, gain, last_size(op), 1);
  if (onnx.has("RMSNormalization", 23))
    return onnx.node("RMSNormalization", {x, scale},
                     {{"axis", int64_t(-1)}, {"epsilon", op.number("eps")}, {"stash_type", int64_t(1)}});
  Fp32Island statistics(onnx);
  std::string square = onnx.reduce("ReduceMean", onnx.node("Mul", {x, x}), {-1}, true);
  std::string root = onnx.node("Sqrt", {onnx.node("Add", {square, onnx.scalar(op.number("eps"))})});
  return onnx.node("Mul", {onnx.node("Div", {x, root}), scale});
}

}  // namespace

OnnxNames lower_layer_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  return {layer_norm(onnx, op.inputs[0], op.inputs[1], op.inputs[2], op)};
}
OnnxNames lower_add_layer_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  std::string h = onnx.node("Add", {op.inputs[0], op.inputs[1]});
  return {h, layer_norm(onnx, h, op.inputs[2], op.inputs[3], op)};
}
OnnxNames lower_rms_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  return {rms_norm(onnx, op.inputs[0], op.inputs[1], op)};
}
OnnxNames lower_add_rms_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  std::string h = onnx.node("Add", {op.inputs[0], op.inputs[1]});
  return {h, rms_norm(onnx, h, op.inputs[2], op)};
}

// Before opset 21, whose predecessor of 18 has no gain per channel, groups are instances of a shape [N, G, -1]. One
// group always is: TensorRT 10.16 computes it per channel (TensorRT#4756).
OnnxNames lower_group_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  const auto& shape = op.input_shapes[0];
  const int64_t groups = op.integer("groups"), channels = shape[1].at[0];
  if (groups > 1 && shape.size() > 2 && onnx.has("GroupNormalization", 21))
    return {onnx.node(
        "GroupNormalization",
        {op.inputs[0], or_filled(onnx, op.inputs[1], channels, 1), or_filled(onnx, op.inputs[2], channels, 0)},
        {{"epsilon", op.number("eps")}, {"num_groups", groups}, {"stash_type", int64_t(1)}})};
  Fp32Island statistics(onnx);
  TracedSize size(1);  // of a group of one image
  for (int t = 0; t < TracedSize::kTraces; ++t)
    for (size_t d = 1; d < shape.size(); ++d) size.at[t] *= shape[d].at[t];
  for (int64_t& n : size.at) n /= groups;
  const std::vector<TracedSize> grouped{shape[0], groups, size};
  std::string x = onnx.reshape(op.inputs[0], shape, grouped);
  x = onnx.node("InstanceNormalization", {x, onnx.constant(ones({groups})), onnx.constant(zeros({groups}))},
                {{"epsilon", op.number("eps")}});
  x = onnx.reshape(x, grouped, shape);
  std::vector<TracedSize> per_channel{channels};
  while (per_channel.size() + 1 < shape.size()) per_channel.emplace_back(1);
  auto broadcast = [&](const std::string& t) { return onnx.reshape(t, {}, per_channel); };
  if (!op.inputs[1].empty()) x = onnx.node("Mul", {x, broadcast(op.inputs[1])});
  if (!op.inputs[2].empty()) x = onnx.node("Add", {x, broadcast(op.inputs[2])});
  return {x};
}

OnnxNames lower_batch_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  XY_CHECK(!op.flag("training"),
           "the layer is still in training mode: it would normalise with the statistics of each "
           "batch; call eval()");
  const int64_t channels = op.input_shapes[0][1].at[0];
  return {onnx.node("BatchNormalization",
                    {op.inputs[0], or_filled(onnx, op.inputs[1], channels, 1),
                     or_filled(onnx, op.inputs[2], channels, 0), op.inputs[3], op.inputs[4]},
                    {{"epsilon", op.number("eps")}})};
}

}  // namespace xylem
