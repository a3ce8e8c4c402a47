// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/autograd/node.h"

namespace xylem {

// While it lives nothing is recorded, and it finds what the operations of this thread read that needs a gradient:
// parameters, and results of what was recorded before.
class Probe {
 public:
  explicit Probe(std::span<const Tensor> known);  // these are not found
  ~Probe();
  void note(std::span<const Tensor> inputs);
  const Tensors& found() const { return found_; }

 private:
  detail::GradModeScope mode_;
  Probe* outer_;
  uint64_t began_;  // the sequence number of the next node
  std::vector<Edge> edges_;
  std::set<std::pair<const Node*, int>> seen_;
  Tensors found_;
};

}  // namespace xylem
