// SPDX-License-Identifier: Apache-2.0
// Three records become one graph: the same operations on the same tensors, and sizes that follow the symbols.
#include "models/export/trace/merge.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "models/nn/lazy.h"

namespace xylem::exporting {

std::vector<bool> live_nodes(const SingleTrace& t) {
  std::vector<bool> live(t.nodes.size()), wanted(t.values.size());
  for (int v : t.outputs) wanted[v] = true;
  for (size_t i = t.nodes.size(); i-- > 0;) {
    for (int v : t.nodes[i].outputs) live[i] = live[i] || wanted[v];
    if (!live[i]) continue;
    for (int v : t.nodes[i].inputs)
      if (v >= 0) wanted[v] = true;
  }
  return live;
}

namespace {

using Kind = TracedValue::Kind;
using Rule = TracedValue::Rule;

bool same_bytes(const Tensor& a, const Tensor& b) {
  if (a.same_as(b)) return true;
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  Tensor x = a.detach().to(Device::cpu()).contiguous(), y = b.detach().to(Device::cpu()).contiguous();
  return x.numel() == 0 || std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

// The value that all elements share.
std::optional<double> fill_of(const Tensor& t) {
  if (t.numel() == 0) return 0;
  std::vector<double> v = t.to_vector<double>();
  return std::all_of(v.begin(), v.end(), [&](double x) { return x == v[0]; }) ? std::optional(v[0]) : std::nullopt;
}
bool counts_up(const Tensor& t) {
  if (t.rank() != 1) return false;
  std::vector<double> v = t.to_vector<double>();
  for (size_t i = 0; i < v.size(); ++i)
    if (v[i] != double(i)) return false;
  return true;
}

std::vector<std::string> split_path(const std::string& name) {
  std::vector<std::string> parts(1);
  for (char c : name)
    if (c == '.')
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}
std::string common_path(const std::string& a, const std::string& b) {
  auto x = split_path(a), y = split_path(b);
  std::string out;
  for (size_t i = 0; i < std::min(x.size(), y.size()) && x[i] == y[i]; ++i) out += (i ? "." : "") + x[i];
  return out;
}

class Merger {
 public:
  Merger(std::vector<SingleTrace>& runs, const std::vector<ExportInput>& inputs, const std::vector<Symbol>& symbols)
      : runs_(runs) {
    graph_.symbols = symbols;
    for (size_t i = 0; i < inputs.size(); ++i)
      graph_.values.push_back({.kind = Kind::input, .index = int(i), .name = inputs[i].name});
    maps_.resize(kTraces);
    for (int r = 0; r < kTraces; ++r) {
      live_.push_back(live_nodes(runs_[r]));
      for (size_t v = 0; v < runs_[r].values.size(); ++v)
        if (runs_[r].values[v].kind == Kind::input) maps_[r][int(v)] = runs_[r].values[v].index;
      for (size_t n = 0; n < runs_[r].nodes.size(); ++n)
        if (live_[r][n]) order_[r].push_back(int(n));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::array<Tensor, kTraces> seen;
      for (int r = 0; r < kTraces; ++r)
        for (const SingleValue& v : runs_[r].values)
          if (v.kind == Kind::input && v.index == int(i)) seen[r] = v.tensor;
      describe_value(graph_.values[i], seen);
      graph_.inputs.push_back(int(i));
    }
    count_uses();
  }

  TracedGraph run() {
    for (size_t p = 0; p < order_[0].size(); ++p) {
      for (int r = 1; r < kTraces; ++r) {
        const char* other = p < order_[r].size() ? node(r, p).spec->name.c_str() : "none";
        XY_CHECK(p < order_[r].size() && node(r, p).spec == node(0, p).spec,
                 "the forward pass takes another path at other sizes: its operation ", p, " is ", node(0, p).spec->name,
                 " at ", point(0), " and ", other, " at ", point(r));
      }
      merge_node(p);
      forget_lazy_values();
    }
    for (int r = 1; r < kTraces; ++r)
      XY_CHECK(order_[r].size() == order_[0].size() && runs_[r].outputs.size() == runs_[0].outputs.size(),
               "the forward pass takes another path at other sizes: ", order_[0].size(), " operations at ", point(0),
               " and ", order_[r].size(), " at ", point(r));
    for (size_t i = 0; i < runs_[0].outputs.size(); ++i)
      graph_.outputs.push_back(
          merge_input({runs_[0].outputs[i], runs_[1].outputs[i], runs_[2].outputs[i]}, "the output"));
    graph_.drop_unused();
    name_scopes();
    return std::move(graph_);
  }

 private:
  using Ids = std::array<int, kTraces>;

  const SingleNode& node(int run, size_t position) const { return runs_[run].nodes[order_[run][position]]; }
  std::string point(int run) const {
    std::string at;
    for (const Symbol& s : graph_.symbols)
      at += (at.empty() ? "" : ", ") + s.name + "=" + std::to_string(s.values[run]);
    return at.empty() ? "run " + std::to_string(run + 1) : at;
  }

  void count_uses() {
    for (int n : order_[0])
      for (int v : runs_[0].nodes[n].inputs)
        if (v >= 0) ++uses_[v];
    for (int v : runs_[0].outputs) ++uses_[v];
  }

  void describe_value(TracedValue& v, const std::array<Tensor, kTraces>& t) {
    v.dtype = t[0].dtype();
    for (int r = 1; r < kTraces; ++r)
      XY_CHECK(t[r].rank() == t[0].rank(), "a tensor of shape ", t[0].shape(), " at ", point(0), " has shape ",
               t[r].shape(), " at ", point(r), ": the number of dimensions must not change");
    for (int d = 0; d < t[0].rank(); ++d) {
      TracedSize s;
      for (int r = 0; r < kTraces; ++r) s.at[r] = t[r].size(d);
      v.shape.push_back(s);
    }
  }
  std::array<Tensor, kTraces> tensors(const Ids& ids) const {
    std::array<Tensor, kTraces> t;
    for (int r = 0; r < kTraces; ++r) t[r] = runs_[r].values[ids[r]].tensor;
    return t;
  }

  int merge_input(const Ids& ids, const std::string& user) {
    if (ids[0] < 0 && ids[1] < 0 && ids[2] < 0) return -1;
    int merged = -1;
    bool all_constant = true;
    for (int r = 0; r < kTraces; ++r) {
      XY_CHECK(ids[r] >= 0, user, " has an input at ", point(0), " that is absent at other sizes");
      const SingleValue& v = runs_[r].values[ids[r]];
      XY_CHECK(!v.changed_in_place, user, " reads a tensor of shape ", v.tensor.shape(),
               " that was changed in place after it had been computed, which a graph can not express");
      if (auto it = maps_[r].find(ids[r]); it != maps_[r].end()) {
        all_constant = false;
        XY_CHECK(r == 0 || it->second == merged, user, " reads another tensor at ", point(r), " than at ", point(0));
        merged = it->second;
      } else {
        XY_CHECK(r == 0 || all_constant, user, " reads a computed tensor at ", point(0), " and a constant at ",
                 point(r));
      }
    }
    if (!all_constant) return merged;
    auto [it, fresh] = constants_.try_emplace(ids, 0);
    if (fresh) it->second = merge_constant(ids, user);
    return it->second;
  }

  int merge_constant(const Ids& ids, const std::string& user) {
    std::array<Tensor, kTraces> t = tensors(ids);
    TracedValue v{.kind = Kind::constant, .name = runs_[0].values[ids[0]].name};
    describe_value(v, t);
    v.data = t[0];
    const bool equal = same_bytes(t[0], t[1]) && same_bytes(t[0], t[2]);
    if (!equal) settle_rule(v, t, user);
    graph_.values.push_back(v);
    return int(graph_.values.size()) - 1;
  }

  // A constant that differs between the runs: a size, one value in a shape, or 0 1 2 ...
  void settle_rule(TracedValue& v, const std::array<Tensor, kTraces>& t, const std::string& user) {
    std::array<std::optional<double>, kTraces> fills;
    for (int r = 0; r < kTraces; ++r) fills[r] = fill_of(t[r]);
    v.data = {};
    if (fills[0] && fills[0] == fills[1] && fills[0] == fills[2]) {
      v.rule = Rule::filled;
      v.fill = *fills[0];
      return;
    }
    if (counts_up(t[0]) && counts_up(t[1]) && counts_up(t[2])) {
      v.rule = Rule::range;
      return;
    }
    if (t[0].numel() == 1 && fills[0] && fills[1] && fills[2]) {
      bool whole = true;
      for (int r = 0; r < kTraces; ++r) {
        v.size.at[r] = int64_t(*fills[r]);
        whole = whole && double(v.size.at[r]) == *fills[r];
      }
      v.rule = Rule::size;
      if (whole && !solve(v.size, graph_.symbols).empty()) return;
    }
    for (int r = 1; r < kTraces; ++r) {
      XY_CHECK(t[r].shape() == t[0].shape(), user, " reads a constant of shape ", t[0].shape(), " at ", point(0),
               " that has shape ", t[r].shape(), " at ", point(r), "; compute it from an input instead");
      std::vector<double> a = t[0].to_vector<double>(), b = t[r].to_vector<double>();
      for (size_t i = 0; i < a.size(); ++i)
        XY_CHECK(a[i] == b[i], user, " reads a constant that is ", a[i], " at ", point(0), " and ", b[i], " at ",
                 point(r),
                 ": it was computed on the host (by item(), say) from sizes or values, and would be frozen into the "
                 "graph");
    }
  }

  TracedSize merge_int(const std::array<int64_t, kTraces>& v) {
    TracedSize s;
    s.at = v;
    return s;
  }
  TracedAttr merge_attr(size_t p, size_t a) {
    std::array<const Attr*, kTraces> x;
    for (int r = 0; r < kTraces; ++r) {
      XY_CHECK(node(r, p).attrs.size() == node(0, p).attrs.size(), user(p), " has other attributes at ", point(r));
      x[r] = &node(r, p).attrs[a].second;
    }
    const std::string& name = node(0, p).attrs[a].first;
    return std::visit(
        [&](const auto& first) -> TracedAttr {
          using T = std::decay_t<decltype(first)>;
          const T *second = std::get_if<T>(x[1]), *third = std::get_if<T>(x[2]);
          XY_CHECK(second && third, user(p), " changes the type of its attribute ", name);
          if constexpr (std::is_same_v<T, int64_t>) {
            return merge_int({first, *second, *third});
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
            XY_CHECK(second->size() == first.size() && third->size() == first.size(), user(p),
                     " changes the length of its attribute ", name);
            std::vector<TracedSize> sizes;
            for (size_t i = 0; i < first.size(); ++i) sizes.push_back(merge_int({first[i], (*second)[i], (*third)[i]}));
            return sizes;
          } else {
            XY_CHECK(first == *second, user(p), ": attribute ", name, " is ", first, " at ", point(0), " and ", *second,
                     " at ", point(1), ", and would be frozen into the graph");
            XY_CHECK(first == *third, user(p), ": attribute ", name, " is ", first, " at ", point(0), " and ", *third,
                     " at ", point(2), ", and would be frozen into the graph");
            return first;
          }
        },
        *x[0]);
  }
  std::string user(size_t p) const { return "operation " + std::to_string(p) + ", " + node(0, p).spec->name + ","; }

  void merge_node(size_t p) {
    TracedNode merged{.spec = node(0, p).spec};
    for (int r = 1; r < kTraces; ++r)
      XY_CHECK(node(r, p).inputs.size() == node(0, p).inputs.size() &&
                   node(r, p).outputs.size() == node(0, p).outputs.size(),
               user(p), " has another number of inputs or outputs at ", point(r));
    for (size_t i = 0; i < node(0, p).inputs.size(); ++i)
      merged.inputs.push_back(merge_input({node(0, p).inputs[i], node(1, p).inputs[i], node(2, p).inputs[i]}, user(p)));
    const bool folded = foldable(p, merged);
    for (size_t a = 0; !folded && a < node(0, p).attrs.size(); ++a)
      merged.attrs.emplace_back(node(0, p).attrs[a].first, merge_attr(p, a));
    for (size_t i = 0; i < node(0, p).outputs.size(); ++i) {
      Ids ids{node(0, p).outputs[i], node(1, p).outputs[i], node(2, p).outputs[i]};
      TracedValue v{.kind = Kind::result, .index = int(i), .producer = int(graph_.nodes.size())};
      describe_value(v, tensors(ids));
      if (folded) {
        v.kind = Kind::constant;
        v.data = runs_[0].values[ids[0]].tensor;
        const std::string& source = merged.inputs.empty() ? std::string() : graph_.values[merged.inputs[0]].name;
        if (!source.empty()) v.name = source + "_" + merged.spec->name;
      }
      const int id = int(graph_.values.size());
      merged.outputs.push_back(id);
      graph_.values.push_back(v);
      for (int r = 0; r < kTraces; ++r) maps_[r][ids[r]] = id;
    }
    if (!folded) graph_.nodes.push_back(merged);
  }

  // A constant result is stored instead of the operation, unless that would store a shared weight twice.
  bool foldable(size_t p, const TracedNode& merged) const {
    const OpSpec& spec = *merged.spec;
    if (merged.inputs.empty() || spec.is(OpRole::quantizer)) return false;
    int64_t source = 0;
    for (size_t i = 0; i < merged.inputs.size(); ++i) {
      if (merged.inputs[i] < 0) continue;
      const TracedValue& v = graph_.values[merged.inputs[i]];
      if (v.kind != Kind::constant || v.rule != Rule::data) return false;
      const int uses = uses_.contains(node(0, p).inputs[i]) ? uses_.at(node(0, p).inputs[i]) : 0;
      if (uses <= 1) source += int64_t(v.data.nbytes());
    }
    int64_t size = 0;
    for (size_t i = 0; i < node(0, p).outputs.size(); ++i) {
      Ids ids{node(0, p).outputs[i], node(1, p).outputs[i], node(2, p).outputs[i]};
      auto t = tensors(ids);
      if (!same_bytes(t[0], t[1]) || !same_bytes(t[0], t[2])) return false;
      size += int64_t(t[0].nbytes());
    }
    constexpr int64_t kSmall = 4096;
    return size <= source + kSmall;
  }

  // The module whose parameter an operation reads; between two such operations, the module that holds both.
  void name_scopes() {
    std::vector<std::string> owner;
    std::vector<bool> known;
    for (const TracedNode& n : graph_.nodes) {
      std::string name;
      for (int v : n.inputs)
        if (graph_.is_constant(v) && name.empty()) name = graph_.values[v].name;
      size_t dot = name.rfind('.');
      known.push_back(!name.empty());
      owner.push_back(dot == std::string::npos ? "" : name.substr(0, dot));
    }
    std::string next;
    std::vector<std::string> following(graph_.nodes.size());
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      following[i] = next;
      if (known[i]) next = owner[i];
    }
    std::string previous;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      graph_.nodes[i].scope = known[i] ? owner[i] : common_path(previous, following[i]);
      if (known[i]) previous = owner[i];
    }
  }

  std::vector<SingleTrace>& runs_;
  TracedGraph graph_;
  std::vector<std::vector<bool>> live_;
  std::array<std::vector<int>, kTraces> order_;  // live nodes
  std::vector<std::map<int, int>> maps_;         // inputs and results of each run -> merged
  std::map<Ids, int> constants_;
  std::map<int, int> uses_;
};

}  // namespace

bool TracedValue::is_fixed() const {
  return std::all_of(shape.begin(), shape.end(), [](const TracedSize& s) { return s.fixed(); });
}

const TracedAttr* TracedNode::find(const std::string& attr) const {
  for (const auto& [name, value] : attrs)
    if (name == attr) return &value;
  return nullptr;
}

std::vector<int> TracedGraph::uses() const {
  std::vector<int> count(values.size());
  for (const TracedNode& n : nodes)
    for (int v : n.inputs)
      if (v >= 0) ++count[v];
  for (int v : outputs) ++count[v];
  return count;
}

void TracedGraph::drop_unused() {
  std::vector<bool> wanted(values.size());
  for (int v : outputs) wanted[v] = true;
  std::vector<TracedNode> kept;
  for (size_t i = nodes.size(); i-- > 0;) {
    TracedNode& n = nodes[i];
    if (std::none_of(n.outputs.begin(), n.outputs.end(), [&](int v) { return wanted[v]; })) continue;
    for (int v : n.inputs)
      if (v >= 0) wanted[v] = true;
    kept.push_back(std::move(n));
  }
  std::reverse(kept.begin(), kept.end());
  nodes = std::move(kept);
  for (size_t i = 0; i < nodes.size(); ++i)
    for (int v : nodes[i].outputs) values[v].producer = int(i);
}

int TracedGraph::add_constant(const Tensor& data, const std::string& name) {
  TracedValue v{.kind = Kind::constant, .name = name, .dtype = data.dtype(), .data = data};
  for (int64_t d : data.shape()) v.shape.emplace_back(d);
  values.push_back(v);
  return int(values.size()) - 1;
}

TracedGraph merge(std::vector<SingleTrace>& runs, const std::vector<ExportInput>& inputs,
                  const std::vector<Symbol>& symbols) {
  return Merger(runs, inputs, symbols).run();
}

}  // namespace xylem::exporting
