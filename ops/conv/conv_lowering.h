// SPDX-License-Identifier: Apache-2.0
// Convolutions, pooling and resizing as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_conv(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_conv_transpose(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_max_pool(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_avg_pool(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_adaptive_avg_pool(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_interpolate(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
