// SPDX-License-Identifier: Apache-2.0
// Pointwise operations.
#include <cmath>
#include <numbers>

#include "models/export/lower/lower.h"

namespace xylem::exporting {
namespace {

using Names = std::vector<std::string>;

// Operands brought to one type, as the operation itself does it.
Names promoted(OnnxBuilder& onnx, const ExportedOp& op, int first = 0) {
  const DType t = promote(op.input_types[first], op.input_types[first + 1]);
  return {onnx.cast(op.inputs[first], t), onnx.cast(op.inputs[first + 1], t)};
}

void add_binary(const char* op, const char* onnx_op) {
  register_onnx_lowering(op, [onnx_op](OnnxBuilder& onnx, const ExportedOp& o) -> Names {
    return {onnx.node(onnx_op, promoted(onnx, o))};
  });
}
void add_unary(const char* op, const char* onnx_op) {
  register_onnx_lowering(
      op, [onnx_op](OnnxBuilder& onnx, const ExportedOp& o) -> Names { return {onnx.node(onnx_op, {o.inputs[0]})}; });
}
void add_scalar_binary(const char* op, const char* onnx_op) {
  register_onnx_lowering(op, [onnx_op](OnnxBuilder& onnx, const ExportedOp& o) -> Names {
    return {onnx.node(onnx_op, {o.inputs[0], onnx.scalar(o.number("value"), o.input_types[0])})};
  });
}

// Comparisons: ONNX compares numbers, so bool becomes i32.
void add_compare(const char* op, const char* onnx_op, bool with_scalar) {
  register_onnx_lowering(op, [=](OnnxBuilder& onnx, const ExportedOp& o) -> Names {
    const DType b = with_scalar ? o.input_types[0] : o.input_types[1];
    DType t = promote(o.input_types[0], b);
    if (t == boolean || t == u8 || t == i8) t = i32;
    std::string x = onnx.cast(o.inputs[0], t);
    std::string y;
    if (!with_scalar) {
      y = onnx.cast(o.inputs[1], t);
    } else if (const double value = o.number("value"); is_float(t) || value == std::trunc(value)) {
      y = onnx.scalar(value, t);
    } else {  // an integer against a fraction
      x = onnx.cast(x, f32);
      y = onnx.scalar(value);
    }
    return {onnx.node(onnx_op, {x, y}, {}, boolean)};
  });
}

std::string times(OnnxBuilder& onnx, const std::string& x, double factor) {
  return onnx.node("Mul", {x, onnx.scalar(factor)});
}

Names gelu(OnnxBuilder& onnx, const ExportedOp& op) {
  const std::string& x = op.inputs[0];
  if (has(onnx, "Gelu", 20)) return {onnx.node("Gelu", {x})};
  std::string erf = onnx.node("Erf", {onnx.node("Div", {x, onnx.scalar(std::numbers::sqrt2)})});
  return {times(onnx, onnx.node("Mul", {x, onnx.node("Add", {erf, onnx.scalar(1)})}), 0.5)};
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
Names gelu_tanh(OnnxBuilder& onnx, const ExportedOp& op) {
  const std::string& x = op.inputs[0];
  if (has(onnx, "Gelu", 20)) return {onnx.node("Gelu", {x}, {{"approximate", "tanh"}})};
  std::string cube = onnx.node("Mul", {x, onnx.node("Mul", {x, x})});
  std::string inner = onnx.node("Add", {x, times(onnx, cube, 0.044715)});
  std::string tanh = onnx.node("Tanh", {times(onnx, inner, std::sqrt(2 / std::numbers::pi))});
  return {times(onnx, onnx.node("Mul", {x, onnx.node("Add", {tanh, onnx.scalar(1)})}), 0.5)};
}

std::string silu(OnnxBuilder& onnx, const std::string& x) { return onnx.node("Mul", {x, onnx.node("Sigmoid", {x})}); }

const bool registered = [] {
  add_binary("add", "Add");
  add_binary("sub", "Sub");
  add_binary("mul", "Mul");
  add_binary("div", "Div");
  add_binary("pow", "Pow");
  add_binary("maximum", "Max");
  add_binary("minimum", "Min");
  add_scalar_binary("add_scalar", "Add");
  add_scalar_binary("mul_scalar", "Mul");
  register_onnx_lowering("pow_scalar", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    const double e = op.number("exponent");
    if (e == 2) return {onnx.node("Mul", {op.inputs[0], op.inputs[0]})};
    return {onnx.node("Pow", {op.inputs[0], onnx.scalar(e)})};
  });
  add_compare("eq", "Equal", false);
  add_compare("lt", "Less", false);
  add_compare("le", "LessOrEqual", false);
  add_compare("eq_scalar", "Equal", true);
  add_compare("lt_scalar", "Less", true);
  add_compare("gt_scalar", "Greater", true);
  register_onnx_lowering("where", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    Names branches = promoted(onnx, op, 1);
    return {onnx.node("Where", {op.inputs[0], branches[0], branches[1]}, {}, op.output_types[0])};
  });
  register_onnx_lowering("cast", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Cast", {op.inputs[0]}, {{"to", int64_t(onnx_type(op.output_types[0]))}}, op.output_types[0])};
  });

  add_unary("exp", "Exp");
  add_unary("log", "Log");
  add_unary("sqrt", "Sqrt");
  add_unary("abs", "Abs");
  add_unary("sin", "Sin");
  add_unary("cos", "Cos");
  add_unary("tanh", "Tanh");
  add_unary("erf", "Erf");
  add_unary("sigmoid", "Sigmoid");
  add_unary("relu", "Relu");
  add_unary("softplus", "Softplus");
  register_onnx_lowering("rsqrt", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Reciprocal", {onnx.node("Sqrt", {op.inputs[0]})})};
  });
  register_onnx_lowering("clamp", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Clip", {op.inputs[0], onnx.scalar(op.number("low")), onnx.scalar(op.number("high"))})};
  });
  register_onnx_lowering("gelu", gelu);
  register_onnx_lowering("gelu_tanh", gelu_tanh);
  register_onnx_lowering("silu",
                         [](OnnxBuilder& onnx, const ExportedOp& op) -> Names { return {silu(onnx, op.inputs[0])}; });
  register_onnx_lowering("swiglu", [](OnnxBuilder& onnx, const ExportedOp& op) -> Names {
    return {onnx.node("Mul", {silu(onnx, op.inputs[0]), op.inputs[1]})};
  });
  return true;
}();

}  // namespace
}  // namespace xylem::exporting
