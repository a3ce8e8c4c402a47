// SPDX-License-Identifier: Apache-2.0
// Normalisation as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_layer_norm(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_add_layer_norm(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_rms_norm(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_add_rms_norm(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_group_norm(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_batch_norm(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
