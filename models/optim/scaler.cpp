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

// Into new tensors: an optimizer may still hold the last pass's overflow.
void LossScaler::begin() {
  NoGrad guard;
  pass_ = {scale_.clone(), good_.clone(), skipped_.clone(), zeros({1}, i32, scale_.device())};
  decided_ = false;
}

Tensor LossScaler::operator()(const Tensor& loss) {
  if (decided_) begin();
  return loss * pass_.scale.view(loss.shape());
}

Tensor LossScaler::inverse() const {
  NoGrad guard;
  const Tensor& scale = pass_.scale.defined() ? pass_.scale : scale_;
  return ones_like(scale) / scale;
}

Tensor LossScaler::update(const Tensor& norm) {
  NoGrad guard;
  if (!pass_.scale.defined()) begin();
  decided_ = true;
  // norm - norm is NaN for infinities and NaN
  pass_.overflow.copy_(where(eq(norm - norm, 0.0), pass_.overflow, ones_like(pass_.overflow)));
  Tensor finite = eq(pass_.overflow.to(f32), 0.0);
  Tensor good = pass_.good + 1.0;
  Tensor grown = eq(good, double(options_.interval));
  Tensor up = where(grown, clamp(pass_.scale * options_.growth, 0, options_.ceiling), pass_.scale);
  Tensor down = clamp(pass_.scale * options_.backoff, options_.floor, options_.ceiling);
  scale_.copy_(where(finite, up, down));
  good_.copy_(where(finite, where(grown, zeros_like(good), good), zeros_like(good)));
  skipped_.copy_(pass_.skipped + pass_.overflow.to(f32));
  return pass_.overflow;
}

}  // namespace xylem
