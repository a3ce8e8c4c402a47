// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding/embedding_lowering.h"

namespace xylem {

OnnxNames lower_embedding(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("Gather", {op.inputs[1], op.inputs[0]}, {{"axis", int64_t(0)}})};
}

OnnxNames lower_index_select(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("Gather", {op.inputs[0], op.inputs[1]}, {{"axis", op.integer("dim")}})};
}

OnnxNames lower_gather(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("GatherElements", {op.inputs[0], op.inputs[1]}, {{"axis", op.integer("dim")}})};
}

OnnxNames lower_scatter_add(OnnxBuilder& onnx, const ExportedOp& op) {
  XY_CHECK(onnx.opset() >= 16, "adding into scattered places needs opset 16, not ", onnx.opset());
  return {onnx.node("ScatterElements", {op.inputs[0], op.inputs[1], op.inputs[2]},
                    {{"axis", op.integer("dim")}, {"reduction", "add"}})};
}

}  // namespace xylem
