// SPDX-License-Identifier: Apache-2.0
// One ONNX operator computed with Xylem's operations.
#pragma once
#include <unordered_map>

#include "core/op/lowering.h"
#include "models/export/onnx/graph.h"

namespace xylem::exporting {

using ImportHandler = Tensors (*)(const ImportedOp&);
using ImportHandlers = std::unordered_map<std::string, ImportHandler>;
const ImportHandlers& network_imports();  // network.cpp
// By a handler of this folder, or by what an operation declares (OpSpec::imports); empty for an operator that neither
// knows.
OnnxImport find_import(const GraphNode& node);

int axis_of(int64_t axis, int rank);  // counted from the front
// Rows of `data` along an axis, as ONNX's Gather.
Tensor take(const Tensor& data, const Tensor& indices, int axis);

}  // namespace xylem::exporting
