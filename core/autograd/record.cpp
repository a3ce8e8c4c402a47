// SPDX-License-Identifier: Apache-2.0
// Building the graph: nodes, saved tensors, scopes and observers.
#include "core/autograd/node.h"
#include "core/autograd/probe.h"
#include "core/autograd/unobserved.h"
#ifdef XY_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

#include <algorithm>
#include <atomic>
#include <utility>

namespace xylem {
namespace {

thread_local OpObserver* observers = nullptr;
thread_local AfterOp* after_op = nullptr;
thread_local Probe* current_probe = nullptr;
std::atomic<uint64_t> next_sequence{1};

void free_node(Node* node) {
  thread_local std::vector<Node*> waiting;
  thread_local bool freeing = false;
  waiting.push_back(node);
  if (freeing) return;
  freeing = true;
  while (!waiting.empty()) {
    Node* n = waiting.back();
    waiting.pop_back();
    delete n;
  }
  freeing = false;
}

}  // namespace

OpScope::OpScope(const OpSpec& spec) : OpScope(spec.name.c_str()) {}
OpScope::OpScope(const char* name) : previous_(detail::set_current_op(name)) {
#ifdef XY_WITH_CUDA
  nvtxRangePushA(name);
#endif
}
OpScope::~OpScope() {
#ifdef XY_WITH_CUDA
  nvtxRangePop();
#endif
  detail::set_current_op(previous_);
  if (previous_[0] == '\0')
    for (AfterOp* a = after_op; a; a = a->next_) a->f_();
}

AfterOp::AfterOp(std::function<void()> f) : f_(std::move(f)), next_(after_op) { after_op = this; }
AfterOp::~AfterOp() {
  AfterOp** at = &after_op;
  while (*at && *at != this) at = &(*at)->next_;
  if (*at) *at = next_;
}

std::shared_ptr<Node> make_node() { return {new Node, free_node}; }

AutogradMeta& meta_of(const Tensor& t) {
  auto& meta = detail::Access::impl(t).autograd;
  if (!meta) meta = std::make_unique<AutogradMeta>();
  return *meta;
}

Edge gradient_edge(const Tensor& t) {
  if (!t.defined() || !detail::Access::impl(t).autograd) return {};
  AutogradMeta& meta = *detail::Access::impl(t).autograd;
  if (meta.node) return {meta.node, meta.output_index};
  if (!meta.requires_grad) return {};
  auto accumulator = meta.accumulator.lock();
  if (!accumulator) {
    accumulator = make_node();
    accumulator->leaf = t.ptr();
    accumulator->sequence = UINT64_MAX;
    accumulator->outputs.push_back({t.shape(), t.dtype(), t.device(), {}});
    meta.accumulator = accumulator;
  }
  return {accumulator, 0};
}

Probe::Probe(std::span<const Tensor> known)
    : mode_(detail::GradMode::probing), outer_(std::exchange(current_probe, this)), began_(next_sequence) {
  note(known);
  found_.clear();
}
Probe::~Probe() { current_probe = outer_; }

void Probe::note(std::span<const Tensor> inputs) {
  for (const Tensor& t : inputs) {
    Edge edge = gradient_edge(t);
    if (!edge.node || (!edge.node->leaf && edge.node->sequence >= began_)) continue;
    if (!seen_.emplace(edge.node.get(), edge.index).second) continue;
    edges_.push_back(edge);
    found_.push_back(t);
  }
}

Saved::Saved(const Tensor& input) {
  if (!input.defined()) return;
  data_ = input.detach();
  version_ = input.version();
  if (!input.requires_grad()) return;
  if (input.is_leaf())
    leaf_ = input;
  else
    node_ = meta_of(input).node, index_ = meta_of(input).output_index;
}

Saved Saved::output(const Tensor& output, int index) {
  Saved s;
  s.data_ = output.detach();
  s.version_ = output.version();
  s.index_ = index;
  s.is_output_ = true;
  return s;
}

namespace detail {

thread_local std::shared_ptr<Node> running_node;

bool wants_node(std::span<const Tensor> inputs) {
  if (grad_mode() == GradMode::off) return false;
  if (std::none_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); }))
    return false;
  if (current_probe) current_probe->note(inputs);
  return grad_enabled();
}

void attach(const OpSpec& spec, std::span<Tensor> outputs, std::span<const Tensor> inputs, Backward backward) {
  auto node = make_node();
  node->spec = &spec;
  node->sequence = next_sequence++;
  node->backward = std::move(backward);
  for (const Tensor& input : inputs) node->edges.push_back(gradient_edge(input));
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor& out = outputs[i];
    // An operation may hand an input through (reshape to the same shape); the result still gets its own identity.
    if (out.requires_grad()) out = out.detach();
    node->outputs.push_back({out.shape(), out.dtype(), out.device(), {}});
    if (!is_float(out.dtype())) continue;
    AutogradMeta& meta = meta_of(out);
    meta.requires_grad = true;
    meta.node = node;
    meta.output_index = static_cast<int>(i);
  }
}

}  // namespace detail

Tensor Saved::get() const {
  if (!data_.defined()) return {};
  XY_CHECK(data_.version() == version_, "a tensor that the gradient needs (shape ", data_.shape(),
           ") was changed in place after the forward pass; change a .clone() of it instead");
  if (leaf_.defined()) return leaf_;
  auto node = is_output_ ? detail::running_node : node_;
  if (!node) return data_;
  Tensor t = data_.detach();
  AutogradMeta& meta = meta_of(t);
  meta.requires_grad = true;
  meta.node = node;
  meta.output_index = index_;
  return t;
}

Tensor record(const OpSpec& spec, Tensor output, const Tensors& inputs, const Attrs& attrs) {
  detail::observe(spec, {&output, 1}, inputs, attrs);
  return output;
}

OpObserver::OpObserver() : next_(observers) { observers = this; }
OpObserver::~OpObserver() {
  OpObserver** at = &observers;
  while (*at && *at != this) at = &(*at)->next_;
  if (*at) *at = next_;
}

Unobserved::Unobserved() : hidden_(std::exchange(observers, nullptr)) {}
Unobserved::~Unobserved() { observers = hidden_; }

void detail::observe(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                     const Attrs& attrs) {
  OpObserver* all = observers;
  if (!all) return;
  Unobserved what_observers_compute;
  for (OpObserver* o = all; o; o = o->next_) o->on_op(spec, outputs, inputs, attrs);
}

}  // namespace xylem
