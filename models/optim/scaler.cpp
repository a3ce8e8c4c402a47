// SPDX-License-Identifier: Apache-2.0
#include "models/optim/scaler.h"

#include "ops/ops.h"

namespace xylem {

LossScaler::LossScaler(Device device, const LossScalerOptions& options)
    : options_(options),
      scale_(full({1}, options.initial, f32, device)),
      good_(zeros({1}, f32, device)),
      skipped_(zeros({1}, f32, device)) {
  XY_CHECK(
      options.initial > 0 && options.growth >= 1 && options.backoff > 0 && options.backoff < 1 && options.interval > 0,
      "a loss scaler needs initial > 0, growth >= 1, 0 < backoff < 1 and interval > 0");
}

Tensor LossScaler::operator()(const Tensor& loss) const { return loss * scale_.view(loss.shape()); }

Tensor LossScaler::inverse() const {
  NoGrad guard;
  return ones_like(scale_) / scale_;
}

Tensor LossScaler::update(const Tensor& norm) {
  NoGrad guard;
  Tensor finite = eq(norm - norm, 0.0);  // false for infinities and NaN
  Tensor good = good_ + 1.0;
  Tensor grown = eq(good, double(options_.interval));
  Tensor up = where(grown, clamp(scale_ * options_.growth, 0, options_.ceiling), scale_);
  Tensor down = clamp(scale_ * options_.backoff, options_.floor, options_.ceiling);
  scale_.copy_(where(finite, up, down));
  good_.copy_(where(finite, where(grown, zeros_like(good), good), zeros_like(good)));
  Tensor skip = eq(finite.to(f32), 0.0);
  skipped_.add_(skip.to(f32));
  return skip.to(i32);
}

}  // namespace xylem
