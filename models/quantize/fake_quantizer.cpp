// SPDX-License-Identifier: Apache-2.0
#include "models/quantize/fake_quantizer.h"

#include <unordered_set>

#include "core/autograd/autograd.h"
#include "models/quantize/ranks.h"
#include "ops/ops.h"

namespace xylem::quantize {

FakeQuantizer::FakeQuantizer(const QuantizerOptions& options, Device device) : options_(options) {
  scale.tensor = ones({}, f32, device);
  amax.tensor = zeros({}, f32, device);
  if (options.learned) log_scale = parameter(zeros({}, f32, device));
}

FakeQuantizer::FakeQuantizer(const QuantizerOptions& options, const Tensor& weight)
    : options_(options), weight_(weight) {
  const FakeQuantizeArgs& args = options.args;
  Shape shape;
  if (args.block > 0) {
    shape = weight.shape();
    shape[shape.rank() - 1] /= args.block;
  } else if (args.axis >= 0) {
    shape = {weight.size(args.axis)};
  }
  scale.tensor = ones(shape, f32, weight.device());
  if (options.learned) log_scale = parameter(zeros(shape, f32, weight.device()));
}

bool FakeQuantizer::uses_histogram() const {
  return !is_weight() && options_.fixed_amax == 0 && options_.observer != Observer::minmax &&
         options_.observer != Observer::moving_average;
}

Tensor FakeQuantizer::operator()(const Tensor& x) const {
  if (observing_) {
    no_grad([&] { watch(x.detach()); });
    return x;
  }
  if (!calibrated_) return x;
  if (frozen_) return fake_quantize(x, scale, options_.args);
  if (log_scale.defined()) return fake_quantize(x, exp(log_scale), options_.args);
  const bool follows = is_weight() || (training() && options_.observer == Observer::moving_average);
  if (!follows) return fake_quantize(x, scale, options_.args);
  // The operation keeps a tensor of its own, since the buffer changes before backward where x is read twice.
  Tensor now = no_grad([&] {
    if (!is_weight()) watch(x.detach());
    Tensor s = is_weight() ? weight_scale() : scale_of(amax);
    scale.tensor.copy_(s);
    return s;
  });
  return fake_quantize(x, now, options_.args);
}

void FakeQuantizer::watch(const Tensor& x) const {
  if (is_weight() || x.numel() == 0) return;
  if (uses_histogram()) {
    histogram_.add(x);
  } else if (options_.fixed_amax == 0) {
    Tensor top = abs_max(x).to(f32), before = amax;
    if (options_.observer == Observer::moving_average && seen_)
      top = before * (1 - options_.momentum) + top * options_.momentum;
    else if (seen_)
      top = maximum(before, top);
    amax.tensor.copy_(top);
  }
  seen_ = true;
}

// A channel without a value above 0 has no scale of its own: 1 will do, and all its numbers become 0.
Tensor FakeQuantizer::scale_of(const Tensor& amax) const {
  Tensor s = rounded(amax * (1 / largest_value(options_.args.format)));
  return where(gt(amax, 0), s, ones_like(s));
}
Tensor FakeQuantizer::rounded(const Tensor& s) const {
  if (options_.fp16_scales) return clamp(s, 0x1p-24, 65504).to(f16).to(f32);
  return clamp(s, 1e-30, 1e30).to(f32);
}
Tensor FakeQuantizer::weight_scale() const {
  return scale_of(abs_max(weight_, options_.args.axis, options_.args.block));
}

void FakeQuantizer::observe() {
  XY_CHECK(!frozen_, "the scales are frozen; a model is calibrated before that");
  observing_ = true, seen_ = false;
  histogram_ = {};
  if (!is_weight()) amax.tensor.zero_();
}

void FakeQuantizer::finish(const Group* group) {
  NoGrad guard;
  observing_ = false;
  if (!is_weight()) {
    if (options_.fixed_amax > 0) {
      amax.tensor.fill_(options_.fixed_amax);
    } else if (uses_histogram()) {
      if (group) join_ranks(histogram_, *group);
      amax.tensor.fill_(options_.observer == Observer::percentile
                            ? percentile_threshold(histogram_, options_.percentile)
                        : options_.observer == Observer::entropy ? entropy_threshold(histogram_)
                                                                 : mse_threshold(histogram_, options_.args.format));
      histogram_ = {};
    } else if (group && options_.observer == Observer::moving_average) {
      join_mean(amax, seen_, *group);
    } else if (group) {
      join_largest(amax, *group);
    }
  }
  scale.tensor.copy_(is_weight() ? weight_scale() : scale_of(amax));
  if (log_scale.defined()) log_scale.copy_(log(scale.tensor));
  calibrated_ = true;
}

void FakeQuantizer::freeze(const Group* group) {
  if (frozen_) return;
  NoGrad guard;
  XY_CHECK(calibrated_, "a quantizer is frozen after calibration");
  if (log_scale.defined()) {
    scale.tensor.copy_(rounded(exp(log_scale)));
  } else if (is_weight()) {
    scale.tensor.copy_(weight_scale());
  } else if (options_.observer == Observer::moving_average) {
    if (group) join_mean(amax, seen_, *group);
    scale.tensor.copy_(scale_of(amax));
  }
  frozen_ = true;
}

bool FakeQuantizer::follows_data() const {
  return !is_weight() && calibrated_ && !frozen_ && !log_scale.defined() && options_.fixed_amax == 0 &&
         options_.observer == Observer::moving_average;
}

void FakeQuantizer::follow(const Tensor& threshold) {
  NoGrad guard;
  amax.tensor.copy_(threshold);
  scale.tensor.copy_(scale_of(amax));
}

void FakeQuantizer::restore(bool frozen) {
  observing_ = false;
  calibrated_ = seen_ = true;
  frozen_ = frozen;
}

std::vector<std::pair<std::string, FakeQuantizer*>> quantizers_of(Module& module) {
  std::vector<std::pair<std::string, FakeQuantizer*>> all;
  std::unordered_set<const Module*> seen;
  for (auto& [name, m] : module.modules())
    if (auto* q = dynamic_cast<FakeQuantizer*>(m); q && seen.insert(q).second) all.emplace_back(name, q);
  return all;
}

}  // namespace xylem::quantize
