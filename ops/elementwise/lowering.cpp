// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/lowering.h"

#include <cmath>

namespace xylem::pointwise {
namespace {

// The type that two operands are compared in.
DType compared_type(DType a, DType b) {
  const DType t = promote(a, b);
  return t == boolean || t == u8 || t == i8 ? i32 : t;
}

}  // namespace

OnnxLowering lower_unary(const OnnxOperator& declared, Composition composed) {
  return [declared, composed](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
    if (composed && !onnx.has(declared.name, declared.since)) return {composed(onnx, op.inputs[0])};
    XY_CHECK(onnx.opset() >= declared.since, declared.name, " needs opset ", declared.since, ", not ", onnx.opset());
    OnnxAttrs attrs;
    for (int i = 0; i < declared.count(); ++i)
      attrs.emplace_back(declared.numbers[i].name, op.number(declared.numbers[i].name));
    if (declared.variant.attribute) attrs.emplace_back(declared.variant.attribute, declared.variant.value);
    return {onnx.node(declared.name, {op.inputs[0]}, attrs)};
  };
}

OnnxLowering lower_unary(Composition composed) {
  return [composed](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames { return {composed(onnx, op.inputs[0])}; };
}

OnnxLowering lower_binary(const char* onnx_operator) {
  return [onnx_operator](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
    return {onnx.node(onnx_operator, promoted(onnx, op))};
  };
}

OnnxLowering lower_with_scalar(const char* onnx_operator) {
  return [onnx_operator](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
    return {onnx.node(onnx_operator, {op.inputs[0], onnx.scalar(op.number("value"), op.input_types[0])})};
  };
}

OnnxLowering lower_compare(const char* onnx_operator) {
  return [onnx_operator](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
    const DType t = compared_type(op.input_types[0], op.input_types[1]);
    std::string x = onnx.cast(op.inputs[0], t), y = onnx.cast(op.inputs[1], t);
    return {onnx.node(onnx_operator, {x, y}, {}, boolean)};
  };
}

OnnxLowering lower_compare_scalar(const char* onnx_operator) {
  return [onnx_operator](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
    const DType t = compared_type(op.input_types[0], op.input_types[0]);
    const double value = op.number("value");
    std::string x = onnx.cast(op.inputs[0], t), y;
    if (is_float(t) || value == std::trunc(value)) {
      y = onnx.scalar(value, t);
    } else {  // an integer against a fraction
      x = onnx.cast(x, f32);
      y = onnx.scalar(value);
    }
    return {onnx.node(onnx_operator, {x, y}, {}, boolean)};
  };
}

OnnxImport import_binary(BinaryCall f) {
  return [f](const ImportedOp& node) -> Tensors { return {f(node.in(0), node.in(1))}; };
}
OnnxImport import_chain(BinaryCall f) {
  return [f](const ImportedOp& node) -> Tensors {
    Tensor y = node.in(0);
    for (size_t i = 1; i < node.inputs.size(); ++i) y = f(y, node.in(i));
    return {y};
  };
}

}  // namespace xylem::pointwise
