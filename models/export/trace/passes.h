// SPDX-License-Identifier: Apache-2.0
// Rewrites of the traced graph before lowering. `notes` tells what was done and what could not be.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "models/export/trace/trace.h"

namespace xylem::exporting {

// Ranges of layers (ExportOptions::activation_amax) become those of the values that they read and give.
void note_ranges(TracedGraph& graph, const std::map<std::string, double>& amax);
void fold_batch_norm(TracedGraph& graph, std::vector<std::string>& notes);
// linear() on more than two dimensions becomes MatMul with a weight that is stored transposed, unless others share it.
void transpose_weights(TracedGraph& graph);

}  // namespace xylem::exporting
