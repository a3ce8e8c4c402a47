// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdlib>

#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

using onnx::TensorProto;
constexpr float kHalfMax = 65504;

bool half(const Rules& r, const std::string& tensor) { return r.graph.type(tensor).dtype == TensorProto::FLOAT16; }

// P3 speaks of these: a mask that is added before, or selected into, a Softmax.
bool is_mask(const Rules& r, const std::string& tensor) {
  for (const Node* n : r.graph.consumers(tensor))
    if (is(n, "Where") || is(n, "Add") || is(n, "Mul") || is(n, "Attention") || is(n, "Cast")) return true;
  return false;
}

void weights(const Rules& r, const std::string& name, const TensorProto& t) {
  bool is_half = t.data_type() == TensorProto::FLOAT16;
  if (!is_half && t.data_type() != TensorProto::FLOAT) return;
  std::vector<float> v = r.graph.values(t);
  float largest = 0, lowest = 0;
  int64_t small = 0;
  for (float x : v) {
    largest = std::max(largest, std::abs(x));
    lowest = std::min(lowest, x);
    small += x != 0 && std::abs(x) < 6.1035e-5f;  // the smallest normal fp16 number
  }
  bool large = !(largest <= kHalfMax);
  if (large && lowest < -kHalfMax && is_mask(r, name)) {
    bool reaches_half = is_half;
    for (const Node* n : r.graph.consumers(name))
      for (const auto& o : n->output()) reaches_half |= half(r, o);
    if (reaches_half)
      r.error("P3", name, "mask value ", lowest, " becomes -inf in fp16, and NaN for fully masked rows. Use -1e4.");
    else if (r.target.tensorrt && !r.target.strongly_typed())
      r.warning("P3", name, "mask value ", lowest, " becomes -inf if the engine is built with --fp16. Use -1e4.");
    return;
  }
  if (large && is_half) r.error("P1", name, "max ", largest, " overflows fp16 (65504). Keep it in fp32.");
  if (large && !is_half && r.target.tensorrt && !r.target.strongly_typed())
    r.warning("P1", name, "max ", largest, " overflows fp16 if the engine is built with --fp16.");
  if (is_half && v.size() >= 64 && small * 100 > int64_t(v.size()))
    r.info("P1", name, 100 * small / int64_t(v.size()), " % of the values are denormal in fp16.");
}

// "xylem.amax.<tensor>" in the metadata: the largest magnitude seen in training.
void activations(const Rules& r) {
  for (const auto& p : r.graph.model.metadata_props()) {
    if (!p.key().starts_with("xylem.amax.")) continue;
    std::string tensor = p.key().substr(11);
    double amax = std::strtod(p.value().c_str(), nullptr);
    if (!half(r, tensor)) continue;
    double step = std::ldexp(1.0, int(std::floor(std::log2(std::max(amax, 1.0)))) - 10);
    if (amax > kHalfMax)
      r.error("P2", tensor, "seen |x| = ", amax, ", which overflows fp16. Keep it in fp32.");
    else if (amax > 512)
      r.warning("P2", tensor, "seen |x| = ", amax, ", where fp16 has steps of ", step, ". Keep it in fp32.");
  }
}

// ReduceMean -> Sub -> Pow or Mul -> ReduceMean -> Add -> Sqrt -> Div, all in fp16.
void decomposed_norm(const Rules& r, const Node& sqrt) {
  if (!half(r, sqrt.output(0))) return;
  const Node* add = r.graph.producer(input(sqrt, 0));
  if (!is(add, "Add")) return;
  for (int i = 0; i < 2; ++i)
    if (is(r.graph.producer(input(*add, i)), "ReduceMean"))
      r.warning("P4", label(sqrt),
                "a variance in fp16 overflows above |x| = 255: keep the statistics in fp32, or use "
                "LayerNormalization (opset 17).");
}

}  // namespace

void check_precision(const Rules& r) {
  for (const auto& t : r.graph.graph.initializer()) weights(r, t.name(), t);
  for (const Node* n : r.graph.nodes()) {
    if (is(n, "Constant") && n->output_size() == 1)
      if (const TensorProto* t = r.graph.constant(n->output(0))) weights(r, n->output(0), *t);
    if (is(n, "Sqrt")) decomposed_norm(r, *n);
    if ((is(n, "LayerNormalization") || is(n, "RMSNormalization")) &&
        attribute(*n, "stash_type", 1) != TensorProto::FLOAT)
      r.warning("P4", label(*n), "stash_type ", attribute(*n, "stash_type", 1), ": keep the statistics in fp32 (1).");
  }
  activations(r);
  if (!r.target.strongly_typed() || r.layers.empty()) return;
  for (const Weighted& w : r.layers)
    if (w.precision != "fp32") return;
  r.warning("P5", "model", r.target.name,
            " takes its types from the graph: this model will run in fp32 or TF32. Export it with "
            "precision fp16.");
}

}  // namespace xylem::lint
