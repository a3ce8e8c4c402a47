// SPDX-License-Identifier: Apache-2.0
// record() turns the result of a computation into a differentiable operation; backward() walks the recorded graph.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/op/op_spec.h"
#include "core/tensor/grad_mode.h"
#include "core/tensor/tensor.h"

namespace xylem {

struct Node;

// Where an operation may write the gradient of a leaf directly, sparing a copy: grad = value, or grad += value.
struct Sink {
  Tensor grad;      // the leaf's gradient buffer: the leaf's shape, f32 or the leaf's dtype
  bool accumulate;  // add to what is there instead of overwriting it
};

struct Edge;
// The gradients that have arrived so far in a backward pass.
class Arrived {
 public:
  virtual ~Arrived() = default;
  // The gradient at `edge` if nobody else can see it, so that it may be added to in place; else undefined.
  virtual Tensor sum_at(const Edge& edge) const = 0;
};

// What backward() wants from an operation.
class Wanted {
 public:
  Wanted(const std::vector<bool>& needs, Node* node, bool create_graph, const Arrived* arrived = nullptr)
      : needs_(needs), node_(node), create_graph_(create_graph), arrived_(arrived) {}
  bool operator[](int input) const { return needs_[input]; }  // whether that input's gradient is needed
  bool create_graph() const { return create_graph_; }         // gradients must themselves be differentiable
  // The buffer of a leaf input whose gradient may be written in place. An operation that uses it calls
  // `wrote(input)` and returns an undefined gradient for the input.
  std::optional<Sink> sink(int input) const;
  void wrote(int input) const;
  bool in_place() const { return node_ && !create_graph_; }  // whether sink() is ever offered
  // What other operations have contributed to the gradient of an input that is not a leaf, contiguous and of `dtype`,
  // if it may be added to in place: an operation that does so returns an undefined gradient for the input. Undefined
  // where there is nothing yet, or somebody else sees it.
  Tensor sum_so_far(int input, DType dtype) const;

 private:
  const std::vector<bool>& needs_;
  Node* node_;
  bool create_graph_;
  const Arrived* arrived_;
};

using Attr = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>>;
using Attrs = std::vector<std::pair<std::string, Attr>>;
using Backward = std::function<Tensors(std::span<const Tensor> grads, const Wanted& want)>;

// A tensor that a backward function keeps. get() returns it, with its history where second derivatives need it, and
// throws if it was changed in place meanwhile. Outputs of the operation itself are kept with Saved::output, since a
// plain copy would make the node own itself.
class Saved {
 public:
  Saved() = default;
  Saved(const Tensor& input);  // NOLINT: implicit on purpose, [x = Saved(x)]
  static Saved output(const Tensor& output, int index = 0);
  Tensor get() const;
  bool defined() const { return data_.defined(); }

 private:
  Tensor data_;  // detached
  Tensor leaf_;  // the input itself when it is a leaf
  std::shared_ptr<Node> node_;
  int index_ = 0;
  bool is_output_ = false;
  uint32_t version_ = 0;
};

// Names the operation that runs on this thread: for errors, profiler ranges and the out-of-memory report.
// The first line of every operation.
class OpScope {
 public:
  explicit OpScope(const OpSpec& spec);
  explicit OpScope(const char* name);  // `name` must outlive the scope
  ~OpScope();
  OpScope(const OpScope&) = delete;

 private:
  const char* previous_;
};

namespace detail {
// Whether a result of these must be recorded.
bool wants_node(std::span<const Tensor> inputs);
void attach(const OpSpec& spec, std::span<Tensor> outputs, std::span<const Tensor> inputs, Backward backward);
void observe(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs, const Attrs& attrs);
}  // namespace detail

// Declares that `outputs` were computed from `inputs` by `spec`. `backward(grads, want)` gets one gradient per output
// (undefined where none arrived) and returns one per input (undefined where none is wanted). Inputs may be undefined
// (an absent bias). It captures exactly the tensors it needs, each as Saved.
template <class F>
Tensors record(const OpSpec& spec, Tensors outputs, const Tensors& inputs, const Attrs& attrs, F&& backward) {
  if (detail::wants_node(inputs)) detail::attach(spec, outputs, inputs, Backward(std::forward<F>(backward)));
  detail::observe(spec, outputs, inputs, attrs);
  return outputs;
}
// The same for one output; `backward(grad, want)` gets the gradient itself.
template <class F>
Tensor record(const OpSpec& spec, Tensor output, const Tensors& inputs, const Attrs& attrs, F&& backward) {
  if (detail::wants_node(inputs))
    detail::attach(spec, {&output, 1}, inputs,
                   [backward = std::forward<F>(backward)](std::span<const Tensor> grads, const Wanted& want) {
                     return backward(grads[0], want);
                   });
  detail::observe(spec, {&output, 1}, inputs, attrs);
  return output;
}
// For operations without a derivative (argmax, comparisons).
Tensor record(const OpSpec& spec, Tensor output, const Tensors& inputs, const Attrs& attrs = {});

// Gradients of sum(outputs * grads) with respect to `inputs`, returned instead of accumulated. Only what leads to the
// inputs runs and is used up.
Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& grads = {}, bool retain_graph = false,
             bool create_graph = false);
// Accumulates into the leaves. An undefined grad means 1 and needs a one-element output.
void backward(const Tensors& outputs, const Tensors& grads = {}, bool retain_graph = false, bool create_graph = false);

// Activation recomputation: runs fn without keeping its intermediates and runs it again during backward, with the
// same random numbers. Saves memory for one extra forward pass. Gradients reach `inputs` and whatever else fn reads
// (parameters, tensors that it captured), as if fn had been called; where none of them needs one, nothing is run again.
// fn must do the same both times: a parameter that it reads in the second run alone is an error.
Tensor recompute(const std::function<Tensor(const Tensors&)>& fn, const Tensors& inputs);

// Sees every recorded operation of this thread, in order, while it lives (FLOP counting, NaN search, tracing).
class OpObserver {
 public:
  OpObserver();
  virtual ~OpObserver();
  OpObserver(const OpObserver&) = delete;
  virtual void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                     const Attrs& attrs) = 0;

 private:
  friend void detail::observe(const OpSpec&, std::span<const Tensor>, std::span<const Tensor>, const Attrs&);
  OpObserver* next_;
};

// Calls f after every outermost operation of this thread, forward or backward, while it lives: the memory that the
// operation read may go then. f must not throw.
class AfterOp {
 public:
  explicit AfterOp(std::function<void()> f);
  ~AfterOp();
  AfterOp(const AfterOp&) = delete;

 private:
  friend class OpScope;
  std::function<void()> f_;
  AfterOp* next_;
};

}  // namespace xylem
