// SPDX-License-Identifier: Apache-2.0
// The quantizer that prepare() puts into layers.
#pragma once
#include <string>

#include "models/nn/quantizer.h"
#include "models/quantize/observer.h"
#include "models/quantize/quantize.h"

namespace xylem::quantize {

struct QuantizerOptions {
  FakeQuantizeArgs args = {};
  Observer observer = Observer::minmax;
  double percentile = 99.99, momentum = 0.1;
  bool fp16_scales = true, learned = false;
  double fixed_amax = 0;  // > 0: known beforehand (probabilities)
};

class FakeQuantizer : public Quantizer {
 public:
  FakeQuantizer(const QuantizerOptions& options, Device device);         // of an activation
  FakeQuantizer(const QuantizerOptions& options, const Tensor& weight);  // follows its range until it is frozen

  Buffer scale;      // f32 [], [C] or [.., K / block]
  Buffer amax;       // f32 [], of activations: the clipping threshold
  Tensor log_scale;  // trained in its place, where scales are learned
  XY_MEMBERS(scale, amax, log_scale)

  Tensor operator()(const Tensor& x) const override;

  void observe();  // from here on x passes unchanged and is observed
  // The statistics of all ranks become the scale.
  void finish(const Group* group);
  void freeze(const Group* group);
  bool follows_data() const;             // training changes amax
  void follow(const Tensor& threshold);  // which becomes amax
  void restore(bool frozen);
  void pause() { observing_ = false; }  // without a result
  bool calibrated() const { return calibrated_; }
  bool seen() const { return seen_ || is_weight(); }
  bool frozen() const { return frozen_; }
  bool is_weight() const { return weight_.defined(); }
  const QuantizerOptions& options() const { return options_; }

 private:
  bool uses_histogram() const;
  Tensor scale_of(const Tensor& amax) const;
  Tensor rounded(const Tensor& scale) const;
  Tensor weight_scale() const;
  void watch(const Tensor& x) const;

  QuantizerOptions options_;
  Tensor weight_;
  bool observing_ = false, calibrated_ = false, frozen_ = false;
  mutable bool seen_ = false;
  mutable Histogram histogram_;
};

// Every quantizer below `module` once, under the first of its names.
std::vector<std::pair<std::string, FakeQuantizer*>> quantizers_of(Module& module);

}  // namespace xylem::quantize
