// SPDX-License-Identifier: Apache-2.0
// Passes over the finished graph: what cancels out goes, then each tensor gets the type that the precision asks for.
#include "models/export/onnx/passes.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "models/nn/lazy.h"

namespace xylem::exporting {
namespace {

constexpr double kLargestHalf = 65504, kKeptInFloat = 512;

bool is_output(const OnnxGraph& g, const std::string& tensor) {
  return std::any_of(g.outputs.begin(), g.outputs.end(), [&](const GraphPort& p) { return p.name == tensor; });
}

// Transposes in a row become one, or none.
bool merge_transposes(OnnxGraph& g) {
  bool changed = false;
  for (GraphNode& second : g.nodes) {
    if (second.op != "Transpose") continue;
    const GraphNode* first = g.producer(second.inputs[0]);
    if (!first || first->op != "Transpose") continue;
    const auto &p = std::get<std::vector<int64_t>>(*first->find("perm")),
               &q = std::get<std::vector<int64_t>>(*second.find("perm"));
    std::vector<int64_t> both;
    bool same = true;
    for (size_t i = 0; i < q.size(); ++i) {
      both.push_back(p[q[i]]);
      same = same && both.back() == int64_t(i);
    }
    second.inputs[0] = first->inputs[0];
    if (same && !is_output(g, second.outputs[0])) {
      const std::string from = second.outputs[0], to = second.inputs[0];
      g.replace_uses(from, to);
    }
    second.set("perm", both);
    changed = true;
  }
  return changed;
}

// Casts to the type that a tensor has, or had before a widening, go.
bool merge_casts(OnnxGraph& g) {
  bool changed = false;
  for (GraphNode& n : g.nodes) {
    if (n.op != "Cast" || is_output(g, n.outputs[0])) continue;
    const int to = int(std::get<int64_t>(*n.find("to")));
    std::string source = n.inputs[0];
    const GraphNode* before = g.producer(source);
    if (g.type_of(source) != to && before && before->op == "Cast" && g.type_of(source) == type::float32)
      source = before->inputs[0];
    if (g.type_of(source) != to || g.uses()[n.outputs[0]] == 0) continue;
    const std::string from = n.outputs[0];
    g.replace_uses(from, source);
    changed = true;
  }
  return changed;
}

class Precision {
 public:
  Precision(OnnxGraph& g, const PrecisionPlan& plan, std::vector<std::string>& notes)
      : g_(g), plan_(plan), notes_(notes) {}

  void run() {
    std::vector<GraphNode> old = std::move(g_.nodes);
    std::vector<bool> low(old.size());
    for (size_t i = 0; i < old.size(); ++i) {
      low[i] = may_be_low(old[i]);
      forget_lazy_values();
    }
    follow_consumers(old, low);
    for (size_t i = 0; i < old.size(); ++i) {
      convert(old[i], low[i]);
      forget_lazy_values();
    }
    for (GraphPort& out : g_.outputs) keep_output(out);
    if (kept_ > 0) notes_.push_back(std::to_string(kept_) + " operations stay in float32");
  }

 private:
  bool touches_float(const GraphNode& n) const {
    auto is_float = [&](const std::string& t) { return !t.empty() && g_.type_of(t) == type::float32; };
    return std::any_of(n.outputs.begin(), n.outputs.end(), is_float) ||
           std::any_of(n.inputs.begin(), n.inputs.end(), is_float);
  }

  bool may_be_low(const GraphNode& n) {
    if (!touches_float(n)) return false;
    if (n.keep_fp32 || n.op == "Cast" || n.op == "Range") return false;
    if ((n.op == "QuantizeLinear" || n.op == "DequantizeLinear") && g_.opset < 19) return false;
    for (const std::string& in : n.inputs) {
      auto it = g_.initializers.find(in);
      if (it == g_.initializers.end() || it->second.type != type::float32 || plan_.type != type::float16) continue;
      if (largest(it->second) > kLargestHalf && !is_mask(it->second)) {
        note_kept(n, in + " exceeds the range of fp16");
        return false;
      }
    }
    if (!plan_.by_range) return true;
    for (const auto* names : {&n.inputs, &n.outputs})
      for (const std::string& t : *names)
        if (auto it = g_.amax.find(t); it != g_.amax.end() && it->second > kKeptInFloat) {
          note_kept(n, t + " reached " + std::to_string(it->second));
          return false;
        }
    return true;
  }

  void note_kept(const GraphNode& n, const std::string& why) { notes_.push_back(n.name + " stays in float32: " + why); }

  // Dequantized values have the type that their reader computes in, so that no Cast comes between them.
  void follow_consumers(const std::vector<GraphNode>& nodes, std::vector<bool>& low) {
    for (size_t i = nodes.size(); i-- > 0;) {
      if (nodes[i].op != "DequantizeLinear" || !low[i]) continue;
      for (size_t j = i + 1; j < nodes.size(); ++j) {
        const auto& in = nodes[j].inputs;
        if (std::find(in.begin(), in.end(), nodes[i].outputs[0]) == in.end()) continue;
        low[i] = low[j];
        break;
      }
    }
  }

  double largest(const OnnxTensor& t) {
    auto [it, fresh] = largest_.try_emplace(t.name, 0);
    const float* x = fresh && t.data.numel() ? t.data.data<float>() : nullptr;
    for (int64_t i = 0; x && i < t.data.numel(); ++i) it->second = std::max(it->second, double(std::abs(x[i])));
    return it->second;
  }
  // Constants that only hide something: they may be cut to what the type holds.
  static bool is_mask(const OnnxTensor& t) {
    for (int64_t i = 0; i < t.data.numel(); ++i) {
      const float v = t.data.data<float>()[i];
      if (v != 0 && v > -kLargestHalf) return false;
    }
    return true;
  }

  static bool stays_float(const GraphNode& n, size_t input) { return n.op == "Resize" && input > 0; }

  void convert(GraphNode& n, bool low) {
    const bool any_float = touches_float_now(n);
    if (any_float && !low && !n.keep_fp32 && n.op != "Cast" && n.op != "Range") ++kept_;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      std::string& in = n.inputs[i];
      if (in.empty() || stays_float(n, i) || n.op == "Cast") continue;
      const int t = g_.type_of(in);
      if (!is_onnx_float(t)) continue;
      const int wanted = low ? plan_.type : type::float32;
      if (t != wanted) in = in_type(in, wanted);
    }
    for (const std::string& out : n.outputs)
      if (low && !out.empty() && g_.values.at(out).type == type::float32) g_.values.at(out).type = plan_.type;
    g_.nodes.push_back(n);
  }
  bool touches_float_now(const GraphNode& n) const {
    return std::any_of(n.outputs.begin(), n.outputs.end(),
                       [&](const std::string& t) { return is_onnx_float(g_.type_of(t)); });
  }

  std::string in_type(const std::string& tensor, int wanted) {
    auto [it, fresh] = converted_.try_emplace({tensor, wanted}, "");
    if (!fresh) return it->second;
    const char* suffix = wanted == type::float16 ? "_fp16" : wanted == type::bfloat16 ? "_bf16" : "_fp32";
    std::string name = it->second = tensor + suffix;
    if (auto init = g_.initializers.find(tensor); init != g_.initializers.end()) {
      OnnxTensor t = init->second;
      t.name = name;
      t.type = wanted;
      const DType dtype = wanted == type::float16 ? f16 : bf16;
      if (wanted == type::float16 && is_mask(t)) {
        t.data = t.data.clone();
        for (int64_t i = 0; i < t.data.numel(); ++i)
          if (t.data.data<float>()[i] <= -kLargestHalf) t.data.data<float>()[i] = -1e4f;
      }
      t.data = lazily(t.data, t.data.shape(), dtype, [dtype](const Tensor& x) { return x.to(dtype); });
      g_.initializers[name] = t;
      return name;
    }
    GraphPort port;
    if (auto v = g_.values.find(tensor); v != g_.values.end()) {
      port = v->second;
    } else {
      for (const GraphPort& in : g_.inputs)
        if (in.name == tensor) port = in;
    }
    port.name = name;
    port.type = wanted;
    g_.values[name] = port;
    GraphNode cast{"Cast", "/cast/" + name, {tensor}, {name}, {{"to", int64_t(wanted)}}};
    g_.nodes.push_back(cast);
    return name;
  }

  // What comes out of the graph has the type that it had.
  void keep_output(GraphPort& out) {
    const int now = g_.type_of(out.name);
    if (!is_onnx_float(now) || now == out.type) return;
    GraphNode* made = g_.producer(out.name);
    const std::string inner = out.name + "_low";
    std::replace(made->outputs.begin(), made->outputs.end(), out.name, inner);
    g_.replace_uses(out.name, inner);
    g_.values[inner] = g_.values[out.name];
    g_.values[inner].name = inner;
    g_.values[out.name].type = out.type;
    g_.nodes.push_back({"Cast", "/cast/" + out.name, {inner}, {out.name}, {{"to", int64_t(out.type)}}});
  }

  OnnxGraph& g_;
  const PrecisionPlan& plan_;
  std::vector<std::string>& notes_;
  std::map<std::string, double> largest_;
  std::map<std::pair<std::string, int>, std::string> converted_;
  int64_t kept_ = 0;
};

}  // namespace

void clean_up(OnnxGraph& graph) {
  graph.drop_unused();
  while (merge_transposes(graph) || merge_casts(graph)) graph.drop_unused();
}

void assign_precision(OnnxGraph& graph, const PrecisionPlan& plan, std::vector<std::string>& notes) {
  Precision(graph, plan, notes).run();
  graph.drop_unused();
}

}  // namespace xylem::exporting
