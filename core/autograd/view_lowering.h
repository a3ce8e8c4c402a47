// SPDX-License-Identifier: Apache-2.0
// Views of tensors, and the sum that is the gradient of a broadcast, as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_reshape(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_permute(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_slice(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_expand(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_sum_to(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_split(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_cat(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_cast(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
