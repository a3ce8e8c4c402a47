// SPDX-License-Identifier: Apache-2.0
#include "ops/reduce/reduce_lowering.h"

namespace xylem {

OnnxLowering lower_reduction(const char* onnx_operator) {
  return [onnx_operator](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
    if (op.rank(0) == 0) return {onnx.node("Identity", {op.inputs[0]})};
    return {onnx.reduce(onnx_operator, op.inputs[0], op.integers("dims"), op.flag("keepdim"))};
  };
}

OnnxLowering lower_softmax(const char* onnx_operator) {
  return [onnx_operator](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
    return {onnx.node(onnx_operator, {op.inputs[0]}, {{"axis", op.integer("dim")}})};
  };
}

OnnxNames lower_argmax(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("ArgMax", {op.inputs[0]}, {{"axis", op.integer("dim")}, {"keepdims", int64_t(op.flag("keepdim"))}},
                    i64)};
}

OnnxNames lower_topk(OnnxBuilder& onnx, const ExportedOp& op) {
  return onnx.nodes("TopK", {op.inputs[0], onnx.sizes({op.size("k")})}, 2, {{"axis", op.integer("dim")}},
                    {op.output_types[0], i64});
}

}  // namespace xylem
