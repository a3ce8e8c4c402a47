// SPDX-License-Identifier: Apache-2.0
// Where quantizers go. Probes in all slots show, in one forward pass, which layers run, in which order and on which
// tensors; layers that read the same tensor share a quantizer.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/autograd/autograd.h"
#include "models/nn/eval_scope.h"
#include "models/quantize/fake_quantizer.h"
#include "models/quantize/places.h"
#include "models/quantize/ranks.h"

namespace xylem::quantize {
namespace {

struct Probe : Quantizer {
  int* clock;
  mutable int first = -1;
  mutable Tensors seen;
  explicit Probe(int* clock) : clock(clock) {}
  Tensor operator()(const Tensor& x) const override {
    if (first < 0) first = (*clock)++;
    seen.push_back(x);
    return x;
  }
};

// Fills every slot with a probe for as long as it lives.
class Probing {
 public:
  explicit Probing(const std::vector<Layer>& layers) : layers_(layers) {
    for (const Layer& l : layers)
      for (QuantizerSlot* slot : l.slots()) {
        if (l.kind == Kind::attention && slot == l.inputs[3]) continue;  // it would change how attention is computed
        auto probe = std::make_shared<Probe>(&clock_);
        probes_[slot] = probe;
        *slot = {probe};
      }
  }
  ~Probing() { clear(); }
  void clear() {
    for (const Layer& l : layers_)
      for (QuantizerSlot* slot : l.slots()) *slot = {};
    layers_.clear();
  }
  const Probe& at(QuantizerSlot* slot) const { return *probes_.at(slot); }

 private:
  int clock_ = 0;
  std::vector<Layer> layers_;
  std::unordered_map<QuantizerSlot*, std::shared_ptr<Probe>> probes_;
};

std::string text(const char* what, int64_t a, int64_t b) {
  return std::string(what) + " " + std::to_string(a) + " and " + std::to_string(b);
}

// Why the layer would gain nothing or has no kernel, or "". The rules are those of NVIDIA's ModelOpt.
std::string obstacle(const Layer& l, const Config& c, bool first, const Probing& probes) {
  const bool fp8 = c.activations == QuantFormat::fp8;
  switch (l.kind) {
    case Kind::linear: {
      int64_t n = l.weight.size(0), k = l.weight.size(1);
      if (c.small_layers || (n >= 16 && k >= 16)) return "";
      return text("too small to gain: outputs and inputs are", n, k);
    }
    case Kind::conv: {
      int64_t out = l.weight.size(0), in = l.weight.size(1) * l.groups, r = l.weight.size(2), s = l.weight.size(3);
      if (c.small_layers) return "";
      if (fp8 && (r * s > 32 || out <= 16 || in <= 16))
        return text("no fp8 kernel: channels are", in, out) + ", the filter has " + std::to_string(r * s) + " taps";
      if (out >= 16 && in >= 16 && l.groups == 1) return "";
      if (l.groups > 1)
        return out % 8 == 0 && r >= 3 && s >= 3 ? "" : text("too small to gain in groups: channels are", in, out);
      bool fits = (out % 8 == 0 && (first || in >= 16)) || (in % 8 == 0 && (first || out >= 16));
      return fits && r == s ? "" : text("too small to gain: channels are", in, out);
    }
    case Kind::conv_transpose: {
      int64_t in = l.weight.size(0), out = l.weight.size(1);
      return c.small_layers || (in >= 16 && out >= 16) ? "" : text("too small to gain: channels are", in, out);
    }
    case Kind::attention: {
      if (!c.attention) return "attention = false";
      const Probe &q = probes.at(l.inputs[0]), &k = probes.at(l.inputs[1]);
      int64_t size = q.seen[0].size(3), length = k.seen[0].size(1);
      if (c.small_layers) return "";
      bool fits =
          fp8 ? size > 8 && size <= 256 && size % 8 == 0 : (size == 16 || size == 32 || size == 64) && length <= 512;
      return fits ? "" : text("no kernel: head size and length are", size, length);
    }
    case Kind::pool:
      return c.pooling ? "" : "pooling = false";
    case Kind::add:
    case Kind::matmul:
      return "";
  }
  return "";
}

FakeQuantizeArgs args_of(QuantFormat format, bool weight) {
  FakeQuantizeArgs args{.format = format};
  if (format == QuantFormat::int4) args.low = weight ? -7 : -8, args.high = 7;
  if (format == QuantFormat::int8 && weight) args.low = -127;
  return args;
}

// The largest of block, block / 2, .. 16 that divides the inputs; 0 if none does.
int64_t block_of(const Tensor& weight, int64_t block) {
  for (; block >= 16; block /= 2)
    if (weight.size(-1) % block == 0) return block;
  return 0;
}

void check(const Config& c) {
  XY_CHECK(c.weights != QuantFormat::int4 || !c.activations,
           "int4 is for weights alone: quantize no activations with it");
  XY_CHECK(!c.activations || c.activations == c.weights, "weights in ", name_of(c.weights), " and activations in ",
           name_of(*c.activations), " do not go together");
  XY_CHECK(c.percentile > 50 && c.percentile <= 100, "percentile is ", c.percentile, " and must be in (50, 100]");
  XY_CHECK(c.momentum > 0 && c.momentum <= 1, "momentum is ", c.momentum, " and must be in (0, 1]");
}

}  // namespace

Summary prepare(Module& model, const std::function<void()>& forward, const Config& config) {
  check(config);
  XY_CHECK(quantizers_of(model).empty(), "the model has quantizers already");
  Summary summary;
  if (config.batch_norms == BatchNorms::fold) summary.folded = fold_batch_norms(model, forward);
  if (config.batch_norms == BatchNorms::freeze) freeze_batch_norms(model);

  std::vector<Layer> layers = layers_of(model);
  Probing probes(layers);
  no_grad([&] {
    EvalScope eval(model);
    forward();
  });
  auto order = [&](const Layer& l) { return probes.at(l.inputs[0]).first; };
  int first_conv = INT32_MAX;
  for (const Layer& l : layers)
    if (l.kind == Kind::conv && order(l) >= 0) first_conv = std::min(first_conv, order(l));

  using Made = std::shared_ptr<FakeQuantizer>;
  std::unordered_map<const TensorImpl*, Made> shared;
  std::vector<std::pair<QuantizerSlot*, Made>> fill;
  QuantizerOptions options{.observer = config.observer,
                           .percentile = config.percentile,
                           .momentum = config.momentum,
                           .fp16_scales = config.fp16_scales,
                           .learned = config.learned};
  auto activation = [&](QuantizerSlot* slot) {
    options.args = args_of(*config.activations, false);
    const Tensors& seen = probes.at(slot).seen;
    bool once = seen.size() == 1;
    Made q = once ? shared[seen[0].ptr().get()] : nullptr;
    if (!q) q = std::make_shared<FakeQuantizer>(options, seen[0].device()), ++summary.quantizers;
    if (once) shared[seen[0].ptr().get()] = q;
    fill.emplace_back(slot, q);
  };

  for (const Layer& l : layers) {
    if (!l.weighted() && !config.activations) continue;
    std::string why;
    if (order(l) < 0)
      why = "the forward pass does not reach it";
    else if (std::any_of(config.exclude.begin(), config.exclude.end(),
                         [&](const std::string& pattern) { return matches(l.name, pattern); }))
      why = "excluded";
    else
      why = obstacle(l, config, order(l) == first_conv, probes);
    int64_t block = 0;
    if (why.empty() && config.weights == QuantFormat::int4) {
      const bool linear = l.kind == Kind::linear;
      if (linear) block = block_of(l.weight, config.block);
      if (!linear)
        why = "int4 is for linear layers";
      else if (block == 0)
        why = "no block size divides its " + std::to_string(l.weight.size(-1)) + " inputs";
    }
    if (!why.empty()) {
      summary.skipped.emplace_back(l.name, why);
      continue;
    }
    summary.layers.push_back(l.name);
    if (config.activations)
      for (QuantizerSlot* slot : l.inputs) {
        if (l.kind == Kind::add && slot == l.inputs[1] && config.placement == Placement::trt) continue;
        if (l.kind == Kind::attention && slot == l.inputs[3]) {
          QuantizerOptions fixed = options;
          fixed.args = args_of(*config.activations, false), fixed.fixed_amax = 1, fixed.learned = false;
          fill.emplace_back(slot, std::make_shared<FakeQuantizer>(fixed, probes.at(l.inputs[0]).seen[0].device()));
          ++summary.quantizers;
          continue;
        }
        activation(slot);
      }
    if (l.weighted()) {
      options.args = args_of(config.weights, true);
      options.args.block = block;
      if (block == 0 && config.per_channel && l.kind != Kind::conv_transpose) options.args.axis = 0;
      QuantizerOptions of_weight = options;
      of_weight.learned = options.learned && block == 0;
      fill.emplace_back(l.weight_slot, std::make_shared<FakeQuantizer>(of_weight, l.weight));
      ++summary.quantizers;
    }
  }
  probes.clear();
  for (auto& [slot, quantizer] : fill) *slot = {quantizer};
  return summary;
}

void calibrate(Module& model, const std::function<void()>& run, const Group* group) {
  auto all = quantizers_of(model);
  XY_CHECK(!all.empty(), "the model has no quantizers: call quantize::prepare() first");
  for (auto& [name, q] : all) q->observe();
  try {
    NoGrad guard;
    EvalScope eval(model);
    run();
  } catch (...) {
    for (auto& [name, q] : all) q->pause();
    throw;
  }
  for (auto& [name, q] : all) {
    XY_CHECK(q->seen() || group, "calibration ran nothing through ", name);
    q->finish(group);
  }
}

void freeze(Module& model, const Group* group) {
  for (auto& [name, q] : quantizers_of(model)) q->freeze(group);
}

void agree(Module& model, const Group& group) {
  if (group.size() == 1) return;
  NoGrad guard;
  std::vector<FakeQuantizer*> following;
  Tensors thresholds;
  for (auto& [name, q] : quantizers_of(model))
    if (q->follows_data()) following.push_back(q), thresholds.push_back(q->amax.tensor);
  if (following.empty()) return;
  Tensor all = stack(thresholds);
  join_largest(all, group);
  for (size_t i = 0; i < following.size(); ++i) following[i]->follow(all[int64_t(i)]);
}

void enable(Module& model, bool on, const std::string& pattern) {
  for (const Layer& layer : layers_of(model))
    if (matches(layer.name, pattern)) layer.enable(on);
}

void restore(Module& model, bool frozen) {
  for (auto& [name, q] : quantizers_of(model)) q->restore(frozen);
}

}  // namespace xylem::quantize
