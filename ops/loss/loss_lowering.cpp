// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/loss_lowering.h"

namespace xylem {

OnnxNames lower_mse_loss(OnnxBuilder& onnx, const ExportedOp& op) {
  std::string d = onnx.node("Sub", {op.inputs[0], op.inputs[1]});
  return {onnx.reduce("ReduceMean", onnx.node("Mul", {d, d}), {}, false)};
}

}  // namespace xylem
