// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scaling for f16 (Micikevicius et al., ICLR 2018): the loss is multiplied by a factor that keeps small
// gradients representable. A step whose gradients overflow is skipped and halves the factor; a run of good steps
// doubles it. All of it happens on the device.
#pragma once
#include "models/nn/module.h"

namespace xylem {

struct LossScalerOptions {
  double initial = 65536, growth = 2, backoff = 0.5, floor = 1, ceiling = 16777216;
  int64_t interval = 2000;  // good steps before the factor grows
};

class LossScaler {
 public:
  explicit LossScaler(Device device, const LossScalerOptions& options = {});

  Tensor operator()(const Tensor& loss) const;  // the scaled loss, for backward()
  Tensor scale() const { return scale_; }       // f32 [1]
  Tensor inverse() const;                       // 1 / scale
  // Moves the factor on after a step whose gradient norm (f32 [1]) is given, and returns i32 [1]: 1 if the step must
  // be skipped because the norm is not finite.
  Tensor update(const Tensor& norm);
  Tensor skipped() const { return skipped_; }  // f32 [1]: steps skipped so far

  std::vector<NamedTensor> state() const { return {{"scale", scale_}, {"good", good_}, {"skipped", skipped_}}; }

 private:
  LossScalerOptions options_;
  Tensor scale_, good_;  // f32 [1]; good_ counts good steps since the factor last changed
  Tensor skipped_;
};

}  // namespace xylem
