// SPDX-License-Identifier: Apache-2.0
#include "models/optim/ema.h"

#include <algorithm>

#include "ops/ops.h"

namespace xylem {

Ema::Ema(const Module& module, const FlatParams& params, double decay) : params_(params), decay_(decay) {
  XY_CHECK(decay > 0 && decay < 1, "the decay of an average must lie between 0 and 1, not at ", decay);
  NoGrad guard;
  params.refresh();
  flat_ = params.like(f32);
  for (const FlatSpan& s : params.spans(any_slot)) pairs_.push_back({s.state(flat_[s.group]), s.values(), s.params});
  for (const NamedTensor& b : module.buffers()) {
    if (!is_float(b.tensor.dtype())) continue;
    buffers_.push_back({b.name, empty(b.tensor.shape(), b.tensor.dtype() == f64 ? f64 : f32, b.tensor.device())});
    pairs_.push_back({buffers_.back().tensor, b.tensor, b.tensor});
  }
  for (Pair& p : pairs_) p.average.copy_(p.value);
}

void Ema::update() {
  NoGrad guard;
  params_.refresh();
  double t = double(updates_++);
  for (Pair& p : pairs_) ema_update(p.average, p.value, std::min(decay_, (1 + t) / (10 + t)));
}

std::vector<NamedTensor> Ema::state() const {
  std::vector<NamedTensor> out;
  params_.name_parts("", flat_, out);
  out.insert(out.end(), buffers_.begin(), buffers_.end());
  return out;
}

std::vector<TensorShard> Ema::shards() const {
  std::vector<TensorShard> out;
  params_.list_shards("", flat_, out);
  for (const NamedTensor& b : buffers_)
    out.push_back({.name = b.name, .shape = b.tensor.shape(), .part = b.tensor.view({-1}), .everywhere = true});
  return out;
}

Ema::Scope::Scope(Ema& ema) : ema_(ema) {
  NoGrad guard;
  for (Pair& p : ema.pairs_) {
    kept_.push_back(p.home.clone());
    p.home.copy_(p.average);
  }
  ema.params_.parallel().publish();
}

Ema::Scope::~Scope() {
  NoGrad guard;
  for (size_t i = 0; i < kept_.size(); ++i) ema_.pairs_[i].home.copy_(kept_[i]);
  ema_.params_.parallel().publish();
}

}  // namespace xylem
