// SPDX-License-Identifier: Apache-2.0
// Passes over the finished graph.
#pragma once
#include <string>
#include <vector>

#include "models/export/onnx/graph.h"

namespace xylem::exporting {

void clean_up(OnnxGraph& graph);  // what cancels out, and what nothing reads, goes

struct PrecisionPlan {
  int type = type::float16;
  bool by_range = false;  // keep what OnnxGraph::amax says is too large in float32
};
// Each tensor gets the type that the precision asks for.
void assign_precision(OnnxGraph& graph, const PrecisionPlan& plan, std::vector<std::string>& notes);

}  // namespace xylem::exporting
