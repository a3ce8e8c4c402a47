// SPDX-License-Identifier: Apache-2.0
// The backward pass: dependency counts and a heap on the sequence number, on the caller's thread, without recursion.
#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/autograd/node.h"
#include "core/tensor/add_flat.h"

namespace xylem {

namespace {

const OpSpec& kAddGradients = (new OpSpec("add_gradients"))
                                  ->samples([] { return std::vector<Sample>{}; })
                                  .double_backward()
                                  .not_exportable("it belongs to a backward pass");

// The sum of two gradients, itself differentiable.
Tensor add_gradients(const Tensor& a, const Tensor& b) {
  OpScope scope(kAddGradients);
  Tensor sum = no_grad([&] {
    Tensor out = empty_in_order_of(a, a.shape(), promote(a.dtype(), b.dtype()), a.device());
    if (can_add_flat(out, a, b)) {
      add_flat(out, a, b);
    } else {
      out.copy_(a);
      out.add_(b);
    }
    return out;
  });
  return record(kAddGradients, sum, {a, b}, {}, [](const Tensor& dy, const Wanted&) -> Tensors { return {dy, dy}; });
}

// Gradients that have arrived for one node's outputs.
struct Inbox {
  Tensors grads;
  std::vector<bool> owned;  // a sum made here, which later contributions may be added to in place

  // Whether nobody but this inbox can see the gradient, so that a sum may take its place.
  static bool sole(const Tensor& t) { return detail::Access::sole(t); }
  static bool holds_sum(const Tensor& t, const Tensor& other) {
    return sole(t) && t.is_dense() && t.dtype() == promote(t.dtype(), other.dtype());
  }

  void add(int index, const Tensor& grad, bool create_graph) {
    Tensor& slot = grads[index];
    if (!slot.defined()) {
      slot = grad;
    } else if (create_graph) {
      slot = add_gradients(slot, grad);
    } else if (owned[index] || holds_sum(slot, grad)) {
      slot.add_(grad);
    } else {
      slot = add_gradients(slot, grad);
      owned[index] = true;
    }
  }
};

class Engine : public Arrived {
 public:
  Engine(bool retain_graph, bool create_graph, bool in_place = false)
      : retain_(retain_graph), create_graph_(create_graph), in_place_(in_place) {}

  // Gradients arriving at `edge` are kept instead of being accumulated. What does not lead to such an edge does not
  // run.
  void capture(const Edge& edge, Tensor* into) { captures_[edge.node.get()].push_back({edge.index, into}); }
  // The walk ends at this node, before its hooks. Leaves that are no ends are then an error.
  void end_at(const Edge& edge) { ends_.insert(edge.node.get()); }

  void run(const Tensors& outputs, const Tensors& grads) {
    std::vector<Edge> roots;
    for (const Tensor& out : outputs) {
      Edge e = gradient_edge(out);
      XY_CHECK(e.node, "backward: the tensor (shape ", out.shape(),
               ") does not depend on anything that requires a gradient");
      roots.push_back(e);
    }
    discover(roots);
    EnableGrad mode(create_graph_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      Tensor seed = i < grads.size() ? grads[i] : Tensor();
      if (!seed.defined()) {
        XY_CHECK(outputs[i].numel() == 1, "backward: shape ", outputs[i].shape(),
                 " is not a scalar; pass the gradient of the output");
        seed = ones_like(outputs[i]);
      }
      XY_CHECK(seed.shape() == outputs[i].shape(), "backward: gradient of shape ", seed.shape(),
               " for an output of shape ", outputs[i].shape());
      deliver(roots[i], seed);
    }
    for (const Edge& e : roots)
      if (--waiting_[e.node.get()] == 0) ready_.push(e.node);
    while (!ready_.empty()) {
      auto node = ready_.top();
      ready_.pop();
      process(*node, node);
    }
  }

 private:
  struct Older {
    bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
      return a->sequence < b->sequence;
    }
  };

  // Finds which nodes will run, and how many contributions every node waits for.
  void discover(const std::vector<Edge>& roots) {
    std::vector<Node*> order = reachable(roots);
    if (!captures_.empty()) {
      std::sort(order.begin(), order.end(),
                [](Node* a, Node* b) { return (a->leaf ? 0 : a->sequence) < (b->leaf ? 0 : b->sequence); });
      for (Node* n : order) {
        bool runs = !ends_.contains(n) && std::any_of(n->edges.begin(), n->edges.end(),
                                                      [&](const Edge& e) { return e.node && leads_[e.node.get()]; });
        if (runs) runs_.insert(n);
        leads_[n] = runs || captures_.contains(n);
      }
    }
    for (const Edge& e : roots) ++waiting_[e.node.get()];
    for (Node* n : order) {
      if (!runs(*n)) continue;
      XY_CHECK(!n->released, "backward: the graph of ", n->spec ? n->spec->name : "a leaf",
               " has already been used; pass retain_graph = true to the first backward()");
      for (const Edge& e : n->edges)
        if (e.node) ++waiting_[e.node.get()];
    }
  }

  std::vector<Node*> reachable(const std::vector<Edge>& roots) const {
    std::vector<Node*> order;
    std::unordered_set<Node*> seen;
    auto visit = [&](const Edge& e) {
      if (e.node && seen.insert(e.node.get()).second) order.push_back(e.node.get());
    };
    for (const Edge& e : roots) visit(e);
    for (size_t i = 0; i < order.size(); ++i) {
      Node* n = order[i];
      if (ends_.contains(n)) continue;
      XY_CHECK(ends_.empty() || !n->leaf, "recompute: backward reads a parameter (shape ",
               n->leaf ? n->leaf->shape : Shape(),
               ") that the forward pass had not read; the function must do the same both times");
      for (const Edge& e : n->edges) visit(e);
    }
    return order;
  }

  bool runs(Node& n) const { return captures_.empty() || runs_.contains(&n); }
  bool needed(const Edge& e) const {
    if (!e.node || captures_.empty()) return e.node != nullptr;
    auto it = leads_.find(e.node.get());
    return it != leads_.end() && it->second;
  }

  Inbox& inbox(Node& n) {
    Inbox& box = inboxes_[&n];
    if (box.grads.empty()) box.grads.resize(n.outputs.size()), box.owned.resize(n.outputs.size());
    return box;
  }

  void deliver(const Edge& edge, const Tensor& grad) { inbox(*edge.node).add(edge.index, grad, create_graph_); }

  void process(Node& node, const std::shared_ptr<Node>& holder) {
    Inbox box = std::move(inbox(node));
    inboxes_.erase(&node);
    const bool any = prepare(node, box);
    if (auto it = captures_.find(&node); it != captures_.end())
      for (auto& [index, into] : it->second) *into = box.grads[index];
    if (!runs(node)) return;
    if (node.leaf) {
      accumulate_leaf(node, box.grads[0], create_graph_);
      for (auto& ready : node.leaf->autograd->on_ready) ready(detail::Access::handle(node.leaf));
      return;
    }
    Tensors results;
    if (any) results = call_backward(node, holder, box.grads);
    for (size_t i = 0; i < node.edges.size(); ++i) {
      Edge& e = node.edges[i];
      if (!e.node) continue;
      if (i < results.size() && results[i].defined()) {
        const Shape& expected = e.node->outputs[e.index].shape;
        XY_ASSERT(results[i].shape() == expected, node.spec->backward_name, " gave input ", i, " a gradient of shape ",
                  results[i].shape(), " instead of ", expected);
        deliver(e, results[i]);
      }
      if (--waiting_[e.node.get()] == 0) ready_.push(e.node);
    }
    if (!retain_) {
      node.backward = nullptr;
      node.released = true;
    }
  }

  // Brings complete gradients into the outputs' types and shows them to the hooks. Returns whether there are any.
  bool prepare(Node& node, Inbox& box) {
    bool any = false;
    for (size_t i = 0; i < box.grads.size(); ++i) {
      Tensor& g = box.grads[i];
      if (!g.defined()) continue;
      any = true;
      if (g.dtype() != node.outputs[i].dtype && !node.leaf) g = g.to(node.outputs[i].dtype);
      if (ends_.contains(&node)) continue;
      for (auto& hook : node.leaf ? node.leaf->autograd->hooks : node.outputs[i].hooks)
        if (Tensor changed = hook(g); changed.defined()) g = changed;
    }
    return any;
  }

  Tensors call_backward(Node& node, const std::shared_ptr<Node>& holder, const Tensors& grads) {
    XY_CHECK(!create_graph_ || node.spec->supports_double_backward, node.spec->name,
             " does not support second derivatives (create_graph = true)");
    std::vector<bool> needs;
    for (const Edge& e : node.edges) needs.push_back(needed(e));
    OpScope scope(node.spec->backward_name.c_str());
    auto previous = std::exchange(detail::running_node, holder);
    struct Restore {
      std::shared_ptr<Node>& previous;
      ~Restore() { detail::running_node = std::move(previous); }
    } restore{previous};
    return node.backward(grads, Wanted(needs, captures_.empty() || in_place_ ? &node : nullptr, create_graph_, this));
  }

  Tensor sum_at(const Edge& edge) const override {
    auto found = inboxes_.find(edge.node.get());
    if (found == inboxes_.end()) return {};
    const Tensor& sum = found->second.grads[edge.index];
    return sum.defined() && (found->second.owned[edge.index] || Inbox::sole(sum)) ? sum : Tensor();
  }

  bool retain_, create_graph_, in_place_;
  std::unordered_map<Node*, int> waiting_;
  std::unordered_set<const Node*> ends_, runs_;
  std::unordered_map<Node*, bool> leads_;
  std::unordered_map<Node*, Inbox> inboxes_;
  std::unordered_map<Node*, std::vector<std::pair<int, Tensor*>>> captures_;
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Older> ready_;
};

}  // namespace

// An accumulator's gradient may be written in place when the leaf has a buffer and nobody wants to see the
// contribution on its way.
std::optional<Sink> Wanted::sink(int input) const {
  if (!node_ || create_graph_ || !node_->edges[input].node) return {};
  Node& target = *node_->edges[input].node;
  if (!target.leaf) return {};
  AutogradMeta& meta = *target.leaf->autograd;
  if (!meta.grad.defined() || !meta.hooks.empty() || !meta.grad.is_contiguous()) return {};
  return Sink{meta.grad, !meta.grad_stale};
}

Tensor Wanted::sum_so_far(int input, DType dtype) const {
  if (!node_ || !arrived_ || create_graph_) return {};
  const Edge& edge = node_->edges[input];
  if (!edge.node || edge.node->leaf) return {};
  Tensor sum = arrived_->sum_at(edge);
  return sum.defined() && sum.dtype() == dtype && sum.is_contiguous() ? sum : Tensor();
}

void Wanted::wrote(int input) const {
  AutogradMeta& meta = *node_->edges[input].node->leaf->autograd;
  meta.grad_stale = false;
  meta.grad.bump_version();
}

void accumulate_leaf(Node& accumulator, const Tensor& grad, bool create_graph) {
  if (!grad.defined()) return;
  AutogradMeta& meta = *accumulator.leaf->autograd;
  if (!meta.grad.defined()) {
    // The arriving tensor becomes the gradient unless someone else holds it or its memory.
    bool ours = grad.ptr().use_count() == 1 && grad.storage().use_count() == 1 && grad.is_contiguous();
    meta.grad = create_graph || ours ? grad : grad.detach().clone();
    if (meta.grad.dtype() != accumulator.leaf->dtype) meta.grad = meta.grad.to(accumulator.leaf->dtype);
  } else if (create_graph) {
    meta.grad = meta.grad_stale ? grad : add_gradients(meta.grad, grad);
  } else {
    NoGrad guard;
    if (meta.grad_stale)
      meta.grad.copy_(grad);
    else
      meta.grad.add_(grad);
  }
  meta.grad_stale = false;
}

void backward(const Tensors& outputs, const Tensors& grads, bool retain_graph, bool create_graph) {
  Engine(retain_graph || create_graph, create_graph).run(outputs, grads);
}

Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& grads, bool retain_graph,
             bool create_graph) {
  Engine engine(retain_graph || create_graph, create_graph);
  Tensors results(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Edge e = gradient_edge(inputs[i]);
    XY_CHECK(e.node, "grad: input ", i, " does not require a gradient");
    engine.capture(e, &results[i]);
  }
  engine.run(outputs, grads);
  return results;
}

Tensors gradients_at(const Tensor& output, const Tensor& grad, const std::vector<Edge>& ends, const Wanted& want) {
  Engine engine(want.create_graph(), want.create_graph(), want.in_place());
  Tensors results(ends.size());
  std::set<std::pair<const Node*, int>> taken;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (!ends[i].node) continue;
    engine.end_at(ends[i]);
    if (want[int(i)] && taken.emplace(ends[i].node.get(), ends[i].index).second) engine.capture(ends[i], &results[i]);
  }
  if (gradient_edge(output).node) engine.run({output}, {grad});
  return results;
}

}  // namespace xylem
