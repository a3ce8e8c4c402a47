// SPDX-License-Identifier: Apache-2.0
// The records of single runs, and what makes one graph of them.
#pragma once
#include <string>
#include <vector>

#include "core/autograd/autograd.h"
#include "models/export/trace/trace.h"

namespace xylem::exporting {

struct SingleValue {
  TracedValue::Kind kind = TracedValue::Kind::result;
  int index = 0, producer = -1;
  std::string name = {};
  Tensor tensor = {};             // of results of the inputs only the shape
  bool constant = false;          // a result that does not depend on the inputs
  bool changed_in_place = false;  // a computed tensor was written to after the operation that made it
};
struct SingleNode {
  const OpSpec* spec = nullptr;
  std::vector<int> inputs = {}, outputs = {};
  Attrs attrs = {};
};
struct SingleTrace {
  std::vector<SingleValue> values;
  std::vector<SingleNode> nodes;
  std::vector<int> outputs;
};

std::vector<bool> live_nodes(const SingleTrace& trace);  // that an output needs

// Throws naming the operation where the runs disagree in anything but sizes.
TracedGraph merge(std::vector<SingleTrace>& runs, const std::vector<ExportInput>& inputs,
                  const std::vector<Symbol>& symbols);

}  // namespace xylem::exporting
