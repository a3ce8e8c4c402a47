// SPDX-License-Identifier: Apache-2.0
// Simulated quantization as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_fake_quantize(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
