// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_lowering.h"

#include <cmath>

namespace xylem {
namespace {

std::vector<int64_t> both_sides(const std::vector<int64_t>& pads) { return {pads[0], pads[1], pads[0], pads[1]}; }

OnnxAttrs conv_attrs(const ExportedOp& op) {
  return {{"kernel_shape", std::vector<int64_t>{op.input_shapes[1][2].at[0], op.input_shapes[1][3].at[0]}},
          {"strides", op.integers("strides")},
          {"pads", both_sides(op.integers("pads"))},
          {"dilations", op.integers("dilations")},
          {"group", op.integer("group")}};
}
OnnxNames with_bias(const ExportedOp& op) {
  OnnxNames in{op.inputs[0], op.inputs[1]};
  if (!op.inputs[2].empty()) in.push_back(op.inputs[2]);
  return in;
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

}  // namespace

OnnxNames lower_conv(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("Conv", with_bias(op), conv_attrs(op))};
}

OnnxNames lower_conv_transpose(OnnxBuilder& onnx, const ExportedOp& op) {
  OnnxAttrs attrs = conv_attrs(op);
  attrs.emplace_back("output_padding", op.integers("output_padding"));
  return {onnx.node("ConvTranspose", with_bias(op), attrs)};
}

OnnxNames lower_max_pool(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("MaxPool", {op.inputs[0]}, pool_attrs(op))};
}

OnnxNames lower_avg_pool(OnnxBuilder& onnx, const ExportedOp& op) {
  OnnxAttrs attrs = pool_attrs(op);
  attrs.emplace_back("count_include_pad", int64_t(op.flag("count_include_pad")));
  return {onnx.node("AveragePool", {op.inputs[0]}, attrs)};
}

OnnxNames lower_adaptive_avg_pool(OnnxBuilder& onnx, const ExportedOp& op) {
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

OnnxNames lower_interpolate(OnnxBuilder& onnx, const ExportedOp& op) {
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

}  // namespace xylem
