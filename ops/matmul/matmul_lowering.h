// SPDX-License-Identifier: Apache-2.0
// Matrix products as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_matmul(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_linear(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
