// SPDX-License-Identifier: Apache-2.0
// Reductions as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxLowering lower_reduction(const char* onnx_operator);
OnnxLowering lower_softmax(const char* onnx_operator);
OnnxNames lower_argmax(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_topk(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
