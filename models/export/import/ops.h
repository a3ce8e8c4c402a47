// SPDX-License-Identifier: Apache-2.0
// One ONNX operator computed with Xylem's operations.
#pragma once
#include <unordered_map>

#include "models/export/onnx/graph.h"

namespace xylem::exporting {

// A node and its inputs; asking for what is not there is an error that names the node.
struct ImportCall {
  const GraphNode& node;
  const Tensors& inputs;
  int opset;

  const Tensor& in(size_t i) const;
  bool has(size_t i) const { return i < inputs.size() && inputs[i].defined(); }
  std::vector<int64_t> ints_of(size_t i) const;  // the values of an integer input
  int64_t integer(const std::string& attr, int64_t otherwise) const;
  double number(const std::string& attr, double otherwise) const;
  std::string text(const std::string& attr, const std::string& otherwise) const;
  std::vector<int64_t> integers(const std::string& attr, std::vector<int64_t> otherwise) const;
  // Axes, shapes and the like moved from attributes to inputs over the years.
  std::vector<int64_t> attr_or_input(const std::string& attr, size_t input) const;
};

using ImportHandler = Tensors (*)(const ImportCall&);
using ImportHandlers = std::unordered_map<std::string, ImportHandler>;
const ImportHandlers& network_imports();           // import_network.cpp
ImportHandler find_import(const std::string& op);  // null for an operator that is not known

int axis_of(int64_t axis, int rank);  // counted from the front
// Rows of `data` along an axis, as ONNX's Gather.
Tensor take(const Tensor& data, const Tensor& indices, int axis);

}  // namespace xylem::exporting
