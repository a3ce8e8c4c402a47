// SPDX-License-Identifier: Apache-2.0
// Matrix products, convolutions, pooling, resizing, normalisation.
#include <cmath>

#include "models/export/lower/lower.h"

namespace xylem::exporting {
namespace {

using Names = std::vector<std::string>;

// Gemm for matrices; x [.., in] otherwise times the transposed weight. ONNX Runtime has no integer kernel for a Gemm
// with a bias in floating point: it is added behind.
Names linear(OnnxBuilder& builder, const ExportedOp& op) {
  auto& onnx = dynamic_cast<GraphBuilder&>(builder);
  const std::string &x = op.inputs[0], &weight = op.inputs[1], &bias = op.inputs[2];
  if (op.rank(0) == 2) {
    Names in{x, weight};
    const GraphNode* made = onnx.graph.producer(x);
    if (onnx.profile == Profile::ort_cpu && !bias.empty() && made && made->op == "DequantizeLinear")
      return {onnx.node("Add", {onnx.node("Gemm", in, {{"transB", int64_t(1)}}), bias})};
    if (!bias.empty()) in.push_back(bias);
    return {onnx.node("Gemm", in, {{"transB", int64_t(1)}})};
  }
  std::string y = onnx.node("MatMul", {x, transpose(onnx, weight, {1, 0})});
  return {bias.empty() ? y : onnx.node("Add", {y, bias})};
}

std::vector<int64_t> both_sides(const std::vector<int64_t>& pads) { return {pads[0], pads[1], pads[0], pads[1]}; }

OnnxAttrs conv_attrs(const ExportedOp& op) {
  return {{"kernel_shape", std::vector<int64_t>{op.input_shapes[1][2].at[0], op.input_shapes[1][3].at[0]}},
          {"strides", op.integers("strides")},
          {"pads", both_sides(op.integers("pads"))},
          {"dilations", op.integers("dilations")},
          {"group", op.integer("group")}};
}
Names with_bias(const ExportedOp& op) {
  Names in{op.inputs[0], op.inputs[1]};
  if (!op.inputs[2].empty()) in.push_back(op.inputs[2]);
  return in;
}

Names conv_transpose(OnnxBuilder& onnx, const ExportedOp& op) {
  OnnxAttrs attrs = conv_attrs(op);
  attrs.emplace_back("output_padding", op.integers("output_padding"));
  return {onnx.node("ConvTranspose", with_bias(op), attrs)};
}

OnnxAttrs pool_attrs(const ExportedOp& op) {
  return {{"kernel_shape", op.integers("kernel_shape")},
          {"strides", op.integers("strides")},
          {"pads", both_sides(op.integers("pads"))}};
}

// [out, in]: row i averages what output i sees.
Tensor averaging_matrix(int64_t in, int64_t out) {
  Tensor m = zeros({out, in});
  for (int64_t i = 0; i < out; ++i) {
    const int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    for (int64_t j = begin; j < end; ++j) m.data<float>()[i * in + j] = 1 / float(end - begin);
  }
  return m;
}

Names adaptive_avg_pool(OnnxBuilder& onnx, const ExportedOp& op) {
  const std::vector<int64_t> out = op.integers("output_size");
  if (out[0] == 1 && out[1] == 1) return {onnx.node("GlobalAveragePool", {op.inputs[0]})};
  const TracedSize &h = op.input_shapes[0][2], &w = op.input_shapes[0][3];
  XY_CHECK(h.fixed() && w.fixed(), "pooling to [", out[0], ", ", out[1],
           "] needs images of a fixed size; only [1, 1] works for dynamic ones");
  if (h.at[0] % out[0] == 0 && w.at[0] % out[1] == 0) {
    std::vector<int64_t> kernel{h.at[0] / out[0], w.at[0] / out[1]};
    return {onnx.node("AveragePool", {op.inputs[0]}, {{"kernel_shape", kernel}, {"strides", kernel}})};
  }
  std::string rows = onnx.node("MatMul", {onnx.constant(averaging_matrix(h.at[0], out[0])), op.inputs[0]});
  return {onnx.node("MatMul", {rows, onnx.constant(averaging_matrix(w.at[0], out[1]).transpose(0, 1).contiguous())})};
}

Names interpolate(OnnxBuilder& onnx, const ExportedOp& op) {
  const bool is_linear = op.text("mode") == "linear";
  const auto &in = op.input_shapes[0], &out = op.output_shapes[0];
  OnnxAttrs attrs{{"mode", op.text("mode")}};
  if (is_linear) {
    attrs.emplace_back("coordinate_transformation_mode", op.flag("align_corners") ? "align_corners" : "half_pixel");
  } else {
    attrs.emplace_back("coordinate_transformation_mode", "asymmetric");
    attrs.emplace_back("nearest_mode", "floor");
  }
  // A scale that divides exactly is a constant; other sizes are given as they are.
  std::vector<float> scales{1, 1};
  bool exact = true;
  for (int d = 2; d < 4; ++d) {
    const float scale = float(out[d].at[0]) / float(in[d].at[0]);
    for (int t = 0; t < TracedSize::kTraces; ++t)
      exact = exact && in[d].at[t] * int64_t(scale) == out[d].at[t] && scale == std::trunc(scale);
    scales.push_back(scale);
  }
  if (exact) return {onnx.node("Resize", {op.inputs[0], "", onnx.constant(from_vector(scales, {4}))}, attrs)};
  return {onnx.node("Resize", {op.inputs[0], "", "", onnx.sizes(out)}, attrs)};
}

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
    Names in{x, scale};
    if (!bias.empty()) in.push_back(bias);
    return onnx.node("LayerNormalization", in,
                     {{"axis", int64_t(-1)}, {"epsilon", op.number("eps")}, {"stash_type", int64_t(1)}});
  }
  Fp32Island statistics(onnx);
  std::string centred = onnx.node("Sub", {x, reduce(onnx, "ReduceMean", x, {-1}, true)});
  std::string variance = reduce(onnx, "ReduceMean", onnx.node("Mul", {centred, centred}), {-1}, true);
  std::string deviation = onnx.node("Sqrt", {onnx.node("Add", {variance, onnx.scalar(op.number("eps"))})});
  std::string y = onnx.node("Mul", {onnx.node("Div", {centred, deviation}), scale});
  return bias.empty() ? y : onnx.node("Add", {y, bias});
}

std::string rms_norm(OnnxBuilder& onnx, const std::string& x, const std::string& gain, const ExportedOp& op) {
  std::string scale = or_filled(onnx, gain, last_size(op), 1);
  if (has(onnx, "RMSNormalization", 23))
    return onnx.node("RMSNormalization", {x, scale},
                     {{"axis", int64_t(-1)}, {"epsilon", op.number("eps")}, {"stash_type", int64_t(1)}});
  Fp32Island statistics(onnx);
  std::string square = reduce(onnx, "ReduceMean", onnx.node("Mul", {x, x}), {-1}, true);
  std::string root = onnx.node("Sqrt", {onnx.node("Add", {square, onnx.scalar(op.number("eps"))})});
  return onnx.node("Mul", {onnx.node("Div", {x, root}), scale});
}

// Before opset 21, whose predecessor of 18 has no gain per channel, groups are instances of a shape [N, G, -1]. One
// group always is: TensorRT 10.16 computes it per channel (TensorRT#4756).
Names group_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  const auto& shape = op.input_shapes[0];
  const int64_t groups = op.integer("groups"), channels = shape[1].at[0];
  if (groups > 1 && shape.size() > 2 && has(onnx, "GroupNormalization", 21))
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
  std::string x = reshape_to(onnx, op.inputs[0], shape, grouped);
  x = onnx.node("InstanceNormalization", {x, onnx.constant(ones({groups})), onnx.constant(zeros({groups}))},
                {{"epsilon", op.number("eps")}});
  x = reshape_to(onnx, x, grouped, shape);
  std::vector<TracedSize> per_channel{channels};
  while (per_channel.size() + 1 < shape.size()) per_channel.emplace_back(1);
  auto broadcast = [&](const std::string& t) { return reshape_to(onnx, t, {}, per_channel); };
  if (!op.inputs[1].empty()) x = onnx.node("Mul", {x, broadcast(op.inputs[1])});
  if (!op.inputs[2].empty()) x = onnx.node("Add", {x, broadcast(op.inputs[2])});
  return {x};
}

Names batch_norm(OnnxBuilder& onnx, const ExportedOp& op) {
  XY_CHECK(!op.flag("training"),
           "the layer is still in training mode: it would normalise with the statistics of each "
           "batch; call eval()");
  const int64_t channels = op.input_shapes[0][1].at[0];
  return {onnx.node("BatchNormalization",
                    {op.inputs[0], or_filled(onnx, op.inputs[1], channels, 1),
                     or_filled(onnx, op.inputs[2], channels, 0), op.inputs[3], op.inputs[4]},
                    {{"epsilon", op.number("eps")}})};
}

const bool registered = [] {
  register_onnx_lowering("matmul", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("MatMul", {op.inputs[0], op.inputs[1]})};
  });
  register_onnx_lowering("linear", linear);
  register_onnx_lowering("conv2d", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Conv", with_bias(op), conv_attrs(op))};
  });
  register_onnx_lowering("conv_transpose2d", conv_transpose);
  register_onnx_lowering("max_pool2d", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("MaxPool", {op.inputs[0]}, pool_attrs(op))};
  });
  register_onnx_lowering("avg_pool2d", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    OnnxAttrs attrs = pool_attrs(op);
    attrs.emplace_back("count_include_pad", int64_t(op.flag("count_include_pad")));
    return {onnx.node("AveragePool", {op.inputs[0]}, attrs)};
  });
  register_onnx_lowering("adaptive_avg_pool2d", adaptive_avg_pool);
  register_onnx_lowering("interpolate", interpolate);
  register_onnx_lowering("layer_norm", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {layer_norm(onnx, op.inputs[0], op.inputs[1], op.inputs[2], op)};
  });
  register_onnx_lowering("add_layer_norm", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    std::string h = onnx.node("Add", {op.inputs[0], op.inputs[1]});
    return {h, layer_norm(onnx, h, op.inputs[2], op.inputs[3], op)};
  });
  register_onnx_lowering("rms_norm", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {rms_norm(onnx, op.inputs[0], op.inputs[1], op)};
  });
  register_onnx_lowering("add_rms_norm", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    std::string h = onnx.node("Add", {op.inputs[0], op.inputs[1]});
    return {h, rms_norm(onnx, h, op.inputs[2], op)};
  });
  register_onnx_lowering("group_norm", group_norm);
  register_onnx_lowering("batch_norm", batch_norm);
  register_onnx_lowering("mse_loss", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    std::string d = onnx.node("Sub", {op.inputs[0], op.inputs[1]});
    return {reduce(onnx, "ReduceMean", onnx.node("Mul", {d, d}), {}, false)};
  });
  return true;
}();

}  // namespace
}  // namespace xylem::exporting
