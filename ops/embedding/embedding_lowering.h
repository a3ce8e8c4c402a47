// SPDX-License-Identifier: Apache-2.0
// Gathering and scattering as nodes of ONNX.
#pragma once
#include "core/op/lowering.h"

namespace xylem {

OnnxNames lower_embedding(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_index_select(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_gather(OnnxBuilder& onnx, const ExportedOp& op);
OnnxNames lower_scatter_add(OnnxBuilder& onnx, const ExportedOp& op);

}  // namespace xylem
