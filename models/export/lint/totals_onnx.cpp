// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

// Multiply-accumulates with dynamic dimensions at the middle of their range.
double macs(const Graph& g, const Weighted& w) {
  double outputs = g.typical_numel(w.node->output(0));
  return outputs * double(w.in) / double(w.groups) * double(w.kernel);
}

// The most memory that activations take at once, in the order of the nodes.
double peak_activations(const Graph& g) {
  std::map<std::string, size_t> last_use;
  for (size_t i = 0; i < g.nodes().size(); ++i)
    for (const auto& in : g.nodes()[i]->input()) last_use[in] = i;
  auto bytes = [&](const std::string& t) { return g.typical_numel(t) * double(element_bits(g.type(t).dtype)) / 8; };
  double live = 0, peak = 0;
  for (const auto& v : g.graph.input())
    if (g.is_input(v.name())) live += bytes(v.name());
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& n = *g.nodes()[i];
    if (is(&n, "Constant")) continue;
    for (const auto& o : n.output()) live += bytes(o);
    peak = std::max(peak, live);
    std::set<std::string> seen(n.input().begin(), n.input().end());
    for (const auto& in : seen)
      if (!g.constant(in) && last_use[in] == i && !g.is_output(in)) live -= bytes(in);
  }
  return peak;
}

}  // namespace

void count_totals(const Rules& r) {
  auto& totals = r.report.totals;
  double all = 0;
  std::map<std::string, double> by_type;
  for (const Weighted& w : r.layers) {
    double m = macs(r.graph, w);
    all += m;
    by_type[w.precision] += m;
  }
  totals["macs"] = all;
  for (const auto& [type, m] : by_type) totals["macs_" + type + "_percent"] = all > 0 ? 100 * m / all : 0;
  double weight_bytes = 0;
  for (const auto& t : r.graph.graph.initializer())
    weight_bytes += double(numel(t)) * double(element_bits(t.data_type())) / 8;
  totals["weight_bytes"] = weight_bytes;
  totals["nodes"] = double(r.graph.nodes().size());
  // A conversion wherever a quantized tensor is read by something that is no integer kernel.
  double conversions = 0;
  for (const Node* n : r.graph.nodes()) {
    if (!is(n, "DequantizeLinear") || r.graph.constant(input(*n, 0)) || n->output_size() == 0) continue;
    for (const Node* c : r.graph.consumers(n->output(0))) {
      bool fused = is(c, "Add") || is(c, "Concat") || c->op_type().find("Pool") != std::string::npos;
      for (const Weighted& w : r.layers) fused |= w.node == c && w.integer();
      conversions += !fused;
    }
  }
  totals["conversions"] = conversions;
  totals["peak_activation_bytes"] = peak_activations(r.graph);
}

}  // namespace xylem::lint
