// SPDX-License-Identifier: Apache-2.0
// The recorded graph. Internal to the core: users see record(), backward() and hooks.
#pragma once
#include <memory>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/tensor/access.h"

namespace xylem {

// Where a gradient goes: output `index` of the operation `node`, or a leaf's accumulator.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;
};

using Hook = std::function<Tensor(const Tensor&)>;

struct Node {
  struct Output {
    Shape shape;
    DType dtype;
    Device device;
    std::vector<Hook> hooks;
  };
  const OpSpec* spec = nullptr;
  uint64_t sequence = 0;  // later operations run first; accumulators run as soon as they are complete
  Backward backward;
  std::vector<Edge> edges;  // one per input; empty where no gradient flows
  std::vector<Output> outputs;
  std::shared_ptr<TensorImpl> leaf;  // set for accumulators only
  bool released = false;             // backward has run and its saved tensors are gone
};

// Graphs can be a million operations deep: the last reference to a node must not free the rest by recursion.
std::shared_ptr<Node> make_node();

struct AutogradMeta {
  bool requires_grad = false;
  Tensor grad;
  bool grad_stale = false;  // the next contribution overwrites
  std::shared_ptr<Node> node;
  int output_index = 0;
  std::weak_ptr<Node> accumulator;
  std::vector<Hook> hooks;                                   // leaves; those of results live in the node
  std::vector<std::function<void(const Tensor&)>> on_ready;  // leaves: after the last contribution of a backward pass
};

AutogradMeta& meta_of(const Tensor& t);
Edge gradient_edge(const Tensor& t);  // empty for tensors that need no gradient
void accumulate_leaf(Node& accumulator, const Tensor& grad, bool create_graph);

// The gradients of sum(output * grad) that arrive at `ends`, where the walk ends: neither their hooks nor anything
// below them runs. Undefined where `want` says no, where nothing arrives, for all but the first of equal ends, and
// for leaves whose buffers took the gradient in place (want.in_place()).
Tensors gradients_at(const Tensor& output, const Tensor& grad, const std::vector<Edge>& ends, const Wanted& want);

namespace detail {
extern thread_local std::shared_ptr<Node> running_node;  // whose backward runs on this thread
}

}  // namespace xylem
