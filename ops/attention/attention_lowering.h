// SPDX-License-Identifier: Apache-2.0
// Attention and rotary positions as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_attention(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_rotary(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
