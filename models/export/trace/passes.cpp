// SPDX-License-Identifier: Apache-2.0
// Rewrites of the traced graph: batch norm into the layer before it, weights into the layout that MatMul reads.
#include "models/export/trace/passes.h"

#include <algorithm>
#include <cmath>

#include "models/nn/lazy.h"

namespace xylem::exporting {
namespace {

using Values = std::vector<double>;

// A weight as a layer reads it: a constant, or a constant behind fake_quantize.
struct Weight {
  int constant = -1;
  TracedNode* quantizer = nullptr;
  int scale = -1;
};

class BatchNormFold {
 public:
  BatchNormFold(TracedGraph& graph, std::vector<std::string>& notes) : graph_(graph), notes_(notes) {}

  void run() {
    const std::vector<int> uses = graph_.uses();
    std::vector<size_t> folded;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      TracedNode& norm = graph_.nodes[i];
      if (!norm.spec->is(OpRole::batch_norm) || std::get<bool>(*norm.find("training"))) continue;
      std::string reason = fold(norm, uses);
      forget_lazy_values();
      if (reason.empty())
        folded.push_back(i);
      else
        notes_.push_back("batch norm '" + norm.scope + "' was not folded: " + reason);
    }
    if (!folded.empty()) notes_.push_back(std::to_string(folded.size()) + " batch norms were folded into weights");
    for (size_t k = folded.size(); k-- > 0;) graph_.nodes.erase(graph_.nodes.begin() + int64_t(folded[k]));
    graph_.drop_unused();
  }

 private:
  // "" when it was folded, else why not.
  std::string fold(TracedNode& norm, const std::vector<int>& uses) {
    const int x = norm.inputs[0];
    const TracedValue& input = graph_.values[x];
    if (input.kind != TracedValue::Kind::result) return "no layer comes before it";
    TracedNode& layer = graph_.nodes[input.producer];
    const OpSpec& op = *layer.spec;
    const bool transposed = op.is(OpRole::transposed_convolution);
    if (!op.is(OpRole::convolution) && !op.is(OpRole::linear) && !transposed)
      return "the layer before it is " + op.name;
    if (op.is(OpRole::linear) && input.shape.size() != 2) return "the layer before it is not a matrix product";
    if (uses[x] != 1) return "the result of the layer before it is used elsewhere";
    if (transposed && !(std::get<TracedSize>(*layer.find("group")) == TracedSize(1)))
      return "the transposed convolution has groups";
    Weight weight = weight_of(layer.inputs[1]);
    if (weight.constant < 0 || uses[layer.inputs[1]] != 1 || uses[weight.constant] != 1)
      return "the weight before it is shared or computed";
    for (int i = 1; i < 5; ++i)
      if (norm.inputs[i] >= 0 && !graph_.is_constant(norm.inputs[i])) return "its statistics are computed";
    if (layer.inputs[2] >= 0 && !graph_.is_constant(layer.inputs[2])) return "the bias before it is computed";

    const int axis = transposed ? 1 : 0;
    const int64_t channels = graph_.values[x].shape[1].at[0];
    const double eps = std::get<double>(*norm.find("eps"));
    Values gain = values(norm.inputs[1], channels, 1), shift = values(norm.inputs[2], channels, 0);
    Values mean = values(norm.inputs[3], channels, 0), variance = values(norm.inputs[4], channels, 1);
    Values bias = values(layer.inputs[2], channels, 0), factor(channels), new_bias(channels);
    for (int64_t c = 0; c < channels; ++c) {
      factor[c] = gain[c] / std::sqrt(variance[c] + eps);
      new_bias[c] = (bias[c] - mean[c]) * factor[c] + shift[c];
    }
    if (weight.quantizer) {
      std::string reason = scale_quantized(weight, axis, factor);
      if (!reason.empty()) return reason;
    } else {
      TracedValue& w = graph_.values[weight.constant];
      w.data = lazily(w.data, w.data.shape(), f32, [axis, factor](const Tensor& t) { return along(t, axis, factor); });
    }
    const std::string prefix = layer.scope.empty() ? "" : layer.scope + ".";
    const std::string name = layer.inputs[2] >= 0 && !graph_.values[layer.inputs[2]].name.empty()
                                 ? graph_.values[layer.inputs[2]].name
                                 : prefix + "bias";
    layer.inputs[2] = graph_.add_constant(from_vector(new_bias, {channels}).to(f32), name);
    layer.outputs[0] = norm.outputs[0];
    return "";
  }

  Weight weight_of(int value) {
    if (graph_.is_constant(value)) return {value};
    if (value < 0 || graph_.values[value].kind != TracedValue::Kind::result) return {};
    TracedNode& n = graph_.nodes[graph_.values[value].producer];
    if (!n.spec->is(OpRole::quantizer) || !graph_.is_constant(n.inputs[0]) || !graph_.is_constant(n.inputs[1]))
      return {};
    return {n.inputs[0], &n, n.inputs[1]};
  }

  Values values(int value, int64_t count, double otherwise) const {
    if (value < 0) return Values(count, otherwise);
    return graph_.values[value].data.to_vector<double>();
  }
  static Tensor along(const Tensor& t, int axis, const Values& factor) {
    Tensor host = t.detach().to(Device::cpu()).to(f64).contiguous();
    Tensor out = empty(t.shape());
    const int64_t inner = contiguous_strides(t.shape())[axis], channels = int64_t(factor.size());
    for (int64_t i = 0; i < out.numel(); ++i)
      out.data<float>()[i] = float(host.data<double>()[i] * factor[i / inner % channels]);
    return out;
  }

  // The levels stay what training found: scales take over |factor|, and rows turn round where the gain is negative.
  std::string scale_quantized(Weight& weight, int axis, const Values& factor) {
    TracedNode& q = *weight.quantizer;
    const TracedAttr* block = q.find("block");
    if (block && !(std::get<TracedSize>(*block) == TracedSize(0))) return "the weight before it is quantized in blocks";
    const TracedSize at = std::get<TracedSize>(*q.find("axis"));
    Values scale = values(weight.scale, 1, 1);
    const int64_t channels = int64_t(factor.size());
    if (scale.size() == 1) {
      if (axis != 0) return "one scale serves all channels of the transposed convolution";
      scale = Values(channels, scale[0]);
    } else if (!(at == TracedSize(axis))) {
      return "the scales before it belong to another dimension";
    }
    const double low = double(std::get<TracedSize>(*q.find("low")).at[0]);
    const double high = double(std::get<TracedSize>(*q.find("high")).at[0]);
    const bool whole = std::get<std::string>(*q.find("format")) != "fp8";
    TracedValue& w = graph_.values[weight.constant];
    Values new_scale(channels), turn(channels);
    for (int64_t c = 0; c < channels; ++c) {
      const bool alive = factor[c] != 0 && scale[c] > 0 && std::isfinite(scale[c]);
      new_scale[c] = alive ? double(float(scale[c] * std::abs(factor[c]))) : 0;
      turn[c] = !alive ? 0 : factor[c] < 0 ? -1 : 1;
    }
    const int64_t inner = contiguous_strides(w.data.shape())[axis];
    w.data = lazily(w.data, w.data.shape(), f32, [=](const Tensor& t) {
      Tensor out = t.detach().to(Device::cpu()).to(f32).contiguous().clone();
      float* x = out.data<float>();
      for (int64_t i = 0; i < out.numel(); ++i) {
        const int64_t c = i / inner % channels;
        double level = double(x[i] / float(scale[c]));
        if (whole) level = std::clamp(std::nearbyint(level), low, high);
        x[i] = turn[c] == 0 ? 0 : float(level * turn[c] * new_scale[c]);
      }
      return out;
    });
    q.inputs[1] = graph_.add_constant(from_vector(new_scale, {channels}).to(f32), graph_.values[weight.scale].name);
    for (auto& [name, value] : q.attrs)
      if (name == "axis") value = TracedSize(axis);
    return "";
  }

  TracedGraph& graph_;
  std::vector<std::string>& notes_;
};

Tensor transposed(const Tensor& t) { return t.detach().to(Device::cpu()).transpose(0, 1).contiguous(); }

}  // namespace

void fold_batch_norm(TracedGraph& graph, std::vector<std::string>& notes) { BatchNormFold(graph, notes).run(); }

void note_ranges(TracedGraph& graph, const std::map<std::string, double>& amax) {
  auto note = [&](int value, const std::string& key) {
    if (value < 0 || graph.is_constant(value)) return;
    double& known = graph.values[value].amax;
    if (auto it = amax.find(key); it != amax.end()) known = std::max(known, it->second);
  };
  for (const TracedNode& n : graph.nodes) {
    for (int v : n.inputs) note(v, n.scope + ":input");
    for (int v : n.outputs) note(v, n.scope);
  }
}

void transpose_weights(TracedGraph& graph) {
  const std::vector<int> uses = graph.uses();
  std::vector<TracedNode> nodes;
  std::vector<TracedNode> old = std::move(graph.nodes);
  for (TracedNode& n : old) {
    const bool wide = n.spec->is(OpRole::linear) && graph.values[n.inputs[0]].shape.size() > 2;
    int weight = wide ? n.inputs[1] : -1;
    bool can = wide && uses[weight] == 1;
    if (can && graph.values[weight].kind == TracedValue::Kind::result) {
      auto quantizer = std::find_if(nodes.begin(), nodes.end(), [&](const TracedNode& q) {
        return q.spec->is(OpRole::quantizer) && q.outputs[0] == weight;
      });
      const TracedAttr* block = quantizer == nodes.end() ? nullptr : quantizer->find("block");
      can = quantizer != nodes.end() && graph.is_constant(quantizer->inputs[0]) && uses[quantizer->inputs[0]] == 1 &&
            (!block || std::get<TracedSize>(*block) == TracedSize(0));
      if (can) {
        std::swap(graph.values[weight].shape[0], graph.values[weight].shape[1]);
        weight = quantizer->inputs[0];
        for (auto& [name, value] : quantizer->attrs)
          if (name == "axis" && std::get<TracedSize>(value) == TracedSize(0)) value = TracedSize(1);
      }
    }
    can = can && graph.is_constant(weight);
    if (!can) {
      nodes.push_back(std::move(n));
      continue;
    }
    TracedValue& w = graph.values[weight];
    w.data = lazily(w.data, {w.data.size(1), w.data.size(0)}, w.data.dtype(), transposed);
    std::swap(w.shape[0], w.shape[1]);
    if (!w.name.empty()) w.name += "_t";
    TracedNode product{.spec = find_op("matmul"), .inputs = {n.inputs[0], n.inputs[1]}, .outputs = n.outputs};
    product.scope = n.scope;
    if (n.inputs[2] >= 0) {
      TracedValue sum = graph.values[n.outputs[0]];
      product.outputs = {int(graph.values.size())};
      graph.values.push_back(sum);
      TracedNode add{.spec = find_op("add"), .inputs = {product.outputs[0], n.inputs[2]}, .outputs = n.outputs};
      add.scope = n.scope;
      nodes.push_back(product);
      nodes.push_back(add);
    } else {
      nodes.push_back(product);
    }
  }
  graph.nodes = std::move(nodes);
  graph.drop_unused();
}

}  // namespace xylem::exporting
