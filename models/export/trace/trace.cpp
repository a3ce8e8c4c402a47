// SPDX-License-Identifier: Apache-2.0
// One run of the forward pass, as it was recorded.
#include "models/export/trace/trace.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "models/export/trace/merge.h"
#include "models/nn/lazy.h"

namespace xylem::exporting {
namespace {

// Where a tensor lies in memory: a tensor whose handle is unknown but whose memory is known is that value (detach()).
using MemoryKey = std::tuple<const Storage*, int64_t, std::vector<int64_t>, std::vector<int64_t>, DType>;
MemoryKey memory_key(const Tensor& t) {
  return {t.storage().get(), t.offset(), t.shape().vec(), t.strides().vec(), t.dtype()};
}

Tensor shape_of(const Tensor& t) {
  return lazy_tensor(t.shape(), t.dtype(), []() -> Tensor { XY_FAIL("the values of a traced result are not kept"); });
}

// What operations have computed on the way to their results serves nobody.
void drop_dead_values(SingleTrace& trace) {
  std::vector<bool> used(trace.values.size()), live = live_nodes(trace);
  for (int v : trace.outputs) used[v] = true;
  for (size_t n = 0; n < live.size(); ++n)
    for (const auto* values : {&trace.nodes[n].inputs, &trace.nodes[n].outputs})
      for (int v : *values)
        if (v >= 0 && live[n]) used[v] = true;
  for (size_t v = 0; v < used.size(); ++v)
    if (!used[v]) trace.values[v].tensor = shape_of(trace.values[v].tensor);
}

// Operations that only move data; the graph has no use for them.
bool passes_through(const OpSpec& spec, const Tensor& in, const Tensor& out) {
  return spec.is(OpRole::copy) || (spec.is(OpRole::cast) && is_float(in.dtype()) && is_float(out.dtype()));
}

class Recorder : public OpObserver {
 public:
  Recorder(const std::vector<NamedTensor>& named, const Tensors& inputs, SingleTrace& into) : trace_(into) {
    for (const NamedTensor& t : named) {
      if (by_impl_.contains(t.tensor.ptr().get()) || by_memory_.contains(memory_key(t.tensor))) continue;
      int id = add({.kind = TracedValue::Kind::constant, .name = t.name, .tensor = t.tensor});
      remember(t.tensor, id);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      int id = add({.kind = TracedValue::Kind::input, .index = int(i), .tensor = inputs[i]});
      remember(inputs[i], id);
    }
  }

  void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
             const Attrs& attrs) override {
    if (spec.is(OpRole::composed)) return;  // its results are those of operations that were seen
    SingleNode node{.spec = &spec, .attrs = attrs};
    for (const Tensor& t : inputs) node.inputs.push_back(t.defined() ? find(t) : -1);
    if (!inputs.empty() && outputs.size() == 1 && inputs[0].defined() && passes_through(spec, inputs[0], outputs[0])) {
      remember(outputs[0], node.inputs[0]);
      return;
    }
    // What may be folded is kept, and of other results their shape.
    const bool constant =
        !spec.is(OpRole::quantizer) && std::all_of(node.inputs.begin(), node.inputs.end(), [&](int v) {
          return v < 0 || trace_.values[v].kind == TracedValue::Kind::constant || trace_.values[v].constant;
        });
    for (size_t i = 0; i < outputs.size(); ++i) {
      int id = add({.kind = TracedValue::Kind::result,
                    .index = int(i),
                    .producer = int(trace_.nodes.size()),
                    .tensor = constant ? outputs[i] : shape_of(outputs[i]),
                    .constant = constant});
      remember(outputs[i], id);
      node.outputs.push_back(id);
    }
    trace_.nodes.push_back(std::move(node));
  }

  int find(const Tensor& t) {
    Known known;
    if (auto it = by_impl_.find(t.ptr().get()); it != by_impl_.end() && !it->second.alive.expired()) {
      known = it->second;
    } else if (auto same = by_memory_.find(memory_key(t)); same != by_memory_.end() && !same->second.alive.expired()) {
      known = same->second;
    }
    if (known.id >= 0 && known.version == t.version()) return known.id;
    // New, or changed in place since: what it holds now. A result of an operation can not be followed through that.
    const bool changed = known.id >= 0 && trace_.values[known.id].kind != TracedValue::Kind::constant;
    int id = add({.kind = TracedValue::Kind::constant, .tensor = t, .changed_in_place = changed});
    remember(t, id);
    return id;
  }

 private:
  struct Known {
    int id = -1;
    uint32_t version = 0;                  // of the storage, when it held this value
    std::weak_ptr<const void> alive = {};  // an address may be used again
  };

  int add(SingleValue value) {
    trace_.values.push_back(std::move(value));
    return int(trace_.values.size()) - 1;
  }
  void remember(const Tensor& t, int id) {
    by_impl_[t.ptr().get()] = {id, t.version(), t.ptr()};
    by_memory_[memory_key(t)] = {id, t.version(), t.storage()};
  }

  SingleTrace& trace_;
  std::unordered_map<const TensorImpl*, Known> by_impl_;
  std::map<MemoryKey, Known> by_memory_;
};

// The example at another size, with other values: rows are repeated from `start` on, floats are scaled a little. What
// the forward pass computes on the host from values then differs between the traces.
Tensor resized(const Tensor& example, const std::map<int, int64_t>& sizes, int run) {
  Tensor t = example.detach();
  for (auto [dim, size] : sizes) {
    const int64_t have = t.size(dim);
    XY_CHECK(have > 0, "an example of shape ", example.shape(), " has an empty dynamic dimension ", dim,
             "; give one with at least one element");
    Tensors rows;
    for (int64_t i = 0; i < size; ++i) rows.push_back(t.narrow(dim, (i + run) % have, 1));
    t = cat(rows, dim);
  }
  t = t.contiguous().same_as(t) ? t.clone() : t.contiguous();
  if (is_float(t.dtype()) && run > 0) t.add_(t, 0.03125 * run);
  return t;
}

// Small primes, other ones in each trace and never two equal ones at once.
constexpr int64_t kPrimes[4][kTraces] = {{2, 3, 5}, {5, 7, 3}, {3, 2, 7}, {7, 5, 2}};

std::vector<Symbol> choose_symbols(const std::vector<ExportInput>& inputs,
                                   const std::map<std::string, DimRange>& ranges) {
  std::vector<Symbol> symbols;
  std::set<std::string> names;
  for (const ExportInput& in : inputs)
    for (const auto& [dim, name] : in.dynamic) names.insert(name);
  const bool has_total = names.contains("total") && names.contains("past") && names.contains("seq");
  int row = 0;
  for (const std::string& name : names) {
    if (has_total && name == "total") continue;  // past + seq, by definition
    XY_CHECK(row < 4, "at most four dynamic dimensions have names of their own, not ", names.size());
    Symbol s{name, {}};
    auto range = ranges.find(name);
    for (int t = 0; t < kTraces; ++t)
      s.values[t] = kPrimes[row][t] * (range == ranges.end() ? 1 : range->second.multiple);
    ++row;
    symbols.push_back(s);
  }
  if (has_total) {
    Symbol total{"total", {}};
    for (const Symbol& s : symbols)
      for (int t = 0; t < kTraces; ++t)
        if (s.name == "past" || s.name == "seq") total.values[t] += s.values[t];
    symbols.push_back(total);
  }
  return symbols;
}

}  // namespace

SingleTrace run_once(const std::vector<NamedTensor>& named, const ExportForward& forward,
                     const std::vector<ExportInput>& inputs, const std::vector<Symbol>& symbols, int run) {
  Tensors values;
  for (const ExportInput& in : inputs) {
    std::map<int, int64_t> sizes;
    for (const auto& [dim, name] : in.dynamic)
      for (const Symbol& s : symbols)
        if (s.name == name) sizes[in.example.dim_index(dim)] = s.values[run];
    values.push_back(resized(in.example, sizes, run));
  }
  SingleTrace trace;
  Tensors outputs;
  Recorder recorder(named, values, trace);
  try {
    outputs = forward(values);
  } catch (const Error& e) {
    std::string at;
    for (const Symbol& s : symbols) at += (at.empty() ? "" : ", ") + s.name + "=" + std::to_string(s.values[run]);
    XY_FAIL("the forward pass fails", at.empty() ? "" : " when it is traced at ", at,
            symbols.empty() ? "" : " (does it hold a size of the example?)", ": ", e.what());
  }
  XY_CHECK(!outputs.empty(), "the forward pass returned no tensor to export");
  for (const Tensor& t : outputs) {
    XY_CHECK(t.defined(), "the forward pass returned an undefined tensor");
    trace.outputs.push_back(recorder.find(t));
  }
  drop_dead_values(trace);
  return trace;
}

TracedGraph trace(Module& model, const ExportForward& forward, const std::vector<ExportInput>& inputs,
                  const std::map<std::string, DimRange>& ranges) {
  std::vector<NamedTensor> named = model.parameters();
  for (const NamedTensor& b : model.buffers()) named.push_back(b);
  const std::vector<Symbol> symbols = choose_symbols(inputs, ranges);
  NoGrad guard;
  std::vector<SingleTrace> runs;
  for (int run = 0; run < kTraces; ++run) runs.push_back(run_once(named, forward, inputs, symbols, run));
  return merge(runs, inputs, symbols);
}

}  // namespace xylem::exporting
