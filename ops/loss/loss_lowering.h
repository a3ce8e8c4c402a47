// SPDX-License-Identifier: Apache-2.0
// Losses as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_mse_loss(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
