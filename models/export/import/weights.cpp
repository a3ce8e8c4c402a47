// SPDX-License-Identifier: Apache-2.0
#include "models/export/import/weights.h"

#include <algorithm>
#include <map>

namespace xylem::exporting {
namespace {

constexpr int kDepth = 12;  // of the chains that are followed

using Names = std::set<std::string>;

const Names& norms() {
  static const auto& all = *new Names{"LayerNormalization", "RMSNormalization", "InstanceNormalization",
                                      "GroupNormalization", "BatchNormalization"};
  return all;
}
// Operators that hand their first input on, in another shape or rounded.
const Names& reshapers() {
  static const auto& all = *new Names{"Transpose", "Reshape",  "Squeeze", "Unsqueeze",      "Flatten",         "Slice",
                                      "Expand",    "Identity", "Cast",    "QuantizeLinear", "DequantizeLinear"};
  return all;
}
// Inputs that are weights by nature.
bool is_weight_input(const std::string& op, size_t input) {
  if (op == "Conv" || op == "ConvTranspose" || op == "Gemm" || norms().contains(op)) return input == 1 || input == 2;
  return op == "PRelu" && input == 1;
}

class Search {
 public:
  explicit Search(const OnnxGraph& graph) : graph_(graph) {
    for (const GraphNode& n : graph.nodes) {
      for (const std::string& out : n.outputs) producers_[out] = &n;
      for (size_t i = 0; i < n.inputs.size(); ++i)
        if (!n.inputs[i].empty()) uses_[n.inputs[i]].push_back({&n, i});
    }
    for (const GraphPort& out : graph.outputs) outputs_.insert(out.name);
  }

  bool is_weight(const OnnxTensor& t) const { return is_weight(t, t.name, 0); }

 private:
  struct Use {
    const GraphNode* node;
    size_t input;
  };

  // `tensor` is the initializer, or what reshaping has made of it.
  bool is_weight(const OnnxTensor& t, const std::string& tensor, int depth) const {
    auto uses = uses_.find(tensor);
    if (depth > kDepth || outputs_.contains(tensor) || uses == uses_.end()) return false;
    return std::all_of(uses->second.begin(), uses->second.end(),
                       [&](const Use& use) { return is_weight_use(t, use, depth); });
  }

  bool is_weight_use(const OnnxTensor& t, const Use& use, int depth) const {
    const GraphNode& n = *use.node;
    if (is_weight_input(n.op, use.input)) return true;
    if (n.op == "MatMul") return is_matrix(t);
    if (reshapers().contains(n.op)) return use.input == 0 && is_weight(t, n.outputs[0], depth + 1);
    if (n.op == "Gather") return use.input == 0 && is_matrix(t) && !turns_angles(n.outputs[0], 0);
    if (n.inputs.size() < 2) return false;
    if (n.op == "Concat")  // a token of a transformer's own
      return std::any_of(n.inputs.begin(), n.inputs.end(),
                         [&](const std::string& in) { return holds_features(in, 0); });
    const std::string& other = n.inputs[use.input == 0 ? 1 : 0];
    if (n.op == "Add" || n.op == "Mul") {
      if (is_channel_vector(t) && follows_layer(other, 0)) return true;
      return n.op == "Add" && is_matrix(t) && holds_features(other, 0) && !is_normalised(n.outputs[0], 0);
    }
    return false;
  }

  // Rows and columns, of more than one each.
  static bool is_matrix(const OnnxTensor& t) {
    return std::count_if(t.dims.begin(), t.dims.end(), [](int64_t d) { return d > 1; }) >= 2;
  }
  // One number for each channel: [C] and [.., 1, C], or [C, 1, 1] of images.
  static bool is_channel_vector(const OnnxTensor& t) {
    if (std::count_if(t.dims.begin(), t.dims.end(), [](int64_t d) { return d > 1; }) != 1) return false;
    const auto at = std::find_if(t.dims.begin(), t.dims.end(), [](int64_t d) { return d > 1; });
    return t.dims.end() - at != 2;
  }

  static std::string source(const GraphNode& n) { return n.inputs.empty() ? "" : n.inputs[0]; }
  const GraphNode* producer(const std::string& tensor) const {
    auto it = producers_.find(tensor);
    return it == producers_.end() ? nullptr : it->second;
  }
  bool made_by(const std::string& tensor, const char* op) const {
    const GraphNode* n = producer(tensor);
    return n && n->op == op;
  }

  // Products of two computed matrices, such as attention scores, are none.
  bool is_layer(const GraphNode& n) const {
    if (n.op == "Gemm" || n.op == "Conv" || n.op == "ConvTranspose") return true;
    return n.op == "MatMul" &&
           std::any_of(n.inputs.begin(), n.inputs.end(), [&](const std::string& in) { return is_constant(in, 0); });
  }
  // Whether a layer or a norm makes `tensor`, a norm written out in simple operators (x / sqrt(variance)) too, perhaps
  // with a bias or gain behind it.
  bool follows_layer(const std::string& tensor, int depth) const {
    const GraphNode* n = producer(tensor);
    if (!n || depth > kDepth) return false;
    if (norms().contains(n->op) || is_layer(*n)) return true;
    if (n->op == "Div") return n->inputs.size() == 2 && made_by(n->inputs[1], "Sqrt");
    if ((n->op == "Mul" || n->op == "Add") && n->inputs.size() == 2) {
      for (size_t i = 0; i < 2; ++i) {
        if (n->op == "Mul" && made_by(n->inputs[i], "Reciprocal")) return true;
        if (is_constant(n->inputs[i], 0) && follows_layer(n->inputs[1 - i], depth + 1)) return true;
      }
      return false;
    }
    return reshapers().contains(n->op) && follows_layer(source(*n), depth + 1);
  }
  bool is_constant(const std::string& tensor, int depth) const {
    if (graph_.is_initializer(tensor)) return true;
    const GraphNode* n = producer(tensor);
    return n && depth <= kDepth && reshapers().contains(n->op) && is_constant(source(*n), depth + 1);
  }

  // Whether `tensor` holds what a layer or an embedding made, and not a picture or mask that came in.
  bool holds_features(const std::string& tensor, int depth) const {
    const GraphNode* n = producer(tensor);
    if (!n || depth > kDepth) return false;
    if (n->op == "Gather" && graph_.is_initializer(source(*n))) return true;
    if (n->op == "Concat")
      return std::any_of(n->inputs.begin(), n->inputs.end(),
                         [&](const std::string& in) { return holds_features(in, depth + 1); });
    if (reshapers().contains(n->op)) return holds_features(source(*n), depth + 1);
    return follows_layer(tensor, depth);
  }

  // Whether a softmax follows, so that what was added is a mask or bias of attention scores.
  bool is_normalised(const std::string& tensor, int depth) const {
    return leads_to(
        tensor, depth, [](const GraphNode& n) { return n.op == "Softmax" || n.op == "LogSoftmax"; },
        [](const GraphNode& n) {
          static const auto& kept = *new Names{"Add", "Sub", "Mul", "Div", "Where", "Clip", "Max", "Min"};
          return kept.contains(n.op) || reshapers().contains(n.op);
        });
  }
  // Whether rows of a table are multiplied by what does not come from them: cosines and sines of rotary positions.
  bool turns_angles(const std::string& tensor, int depth) const {
    auto turns = [&](const GraphNode& n) {
      if (n.op == "RotaryEmbedding") return true;
      if (n.op != "Mul") return false;
      return std::any_of(n.inputs.begin(), n.inputs.end(), [&](const std::string& in) {
        return !graph_.is_initializer(in) && !made_by(in, "Constant") && !comes_from(in, tensor);
      });
    };
    return leads_to(tensor, depth, turns, [](const GraphNode& n) { return reshapers().contains(n.op); });
  }
  bool comes_from(const std::string& tensor, const std::string& source) const {
    Names seen;
    std::vector<std::string> waiting{tensor};
    while (!waiting.empty()) {
      const std::string at = std::move(waiting.back());
      waiting.pop_back();
      if (at == source) return true;
      const GraphNode* n = seen.insert(at).second ? producer(at) : nullptr;
      if (n) waiting.insert(waiting.end(), n->inputs.begin(), n->inputs.end());
    }
    return false;
  }
  template <class Found, class Follows>
  bool leads_to(const std::string& tensor, int depth, const Found& found, const Follows& follows) const {
    auto uses = uses_.find(tensor);
    if (depth > kDepth || uses == uses_.end()) return false;
    return std::any_of(uses->second.begin(), uses->second.end(), [&](const Use& use) {
      if (found(*use.node)) return true;
      return follows(*use.node) && leads_to(use.node->outputs[0], depth + 1, found, follows);
    });
  }

  const OnnxGraph& graph_;
  std::map<std::string, const GraphNode*> producers_;
  std::map<std::string, std::vector<Use>> uses_;
  Names outputs_;
};

}  // namespace

std::set<std::string> weights_of(const OnnxGraph& graph) {
  const Search search(graph);
  // Xylem's exporter gives constants that no module owns this name.
  const bool ours = graph.metadata.contains("xylem.version");
  std::set<std::string> weights;
  for (const auto& [name, t] : graph.initializers)
    if (t.data.numel() > 1 && !(ours && name.starts_with("constant")) && search.is_weight(t)) weights.insert(name);
  return weights;
}

}  // namespace xylem::exporting
