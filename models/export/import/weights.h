// SPDX-License-Identifier: Apache-2.0
// Which constants of a graph are weights: what training moves (docs/export.md has the rule in words).
#pragma once
#include <set>
#include <string>

#include "models/export/onnx/graph.h"

namespace xylem::exporting {

// Initializers in floating point, and those that are stored as integers, whose every use is that of a weight.
std::set<std::string> weights_of(const OnnxGraph& graph);

}  // namespace xylem::exporting
