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

// Note [Pass]: one scaler may serve several optimizers. A pass begins with the first loss that is scaled after a step
// was decided on, and all of it (several losses, the clip() of every optimizer) has one factor: the next pass's is
// worked out anew with each clip() from this pass's and from all norms so far. An overflow that one optimizer sees is
// one of the pass, so whoever steps after it skips.
class LossScaler {
 public:
  explicit LossScaler(Device device, const LossScalerOptions& options = {});

  Tensor operator()(const Tensor& loss);   // the loss times the factor of this pass, for backward()
  Tensor scale() const { return scale_; }  // f32 [1]: the factor of this pass; after a clip() that of the next one
  Tensor inverse() const;                  // 1 / the factor of this pass
  // Takes in the gradient norm (f32 [1], already unscaled) of one of the pass's optimizers. Returns i32 [1]: 1 if the
  // pass must be skipped because a norm is not finite, those of later calls included.
  Tensor update(const Tensor& norm);
  Tensor skipped() const { return skipped_; }  // f32 [1]: passes skipped so far

  std::vector<NamedTensor> state() const { return {{"scale", scale_}, {"good", good_}, {"skipped", skipped_}}; }

 private:
  void begin();

  LossScalerOptions options_;
  Tensor scale_, good_;  // f32 [1]; good_ counts good passes since the factor last changed
  Tensor skipped_;
  struct {
    Tensor scale, good, skipped;  // when it began
    Tensor overflow;              // i32 [1]
  } pass_;
  bool decided_ = true;  // update() was called: the next loss begins a pass
};

}  // namespace xylem
