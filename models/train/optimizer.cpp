// SPDX-License-Identifier: Apache-2.0
#include "models/train/optimizer.h"

#include <utility>

namespace xylem {

Optimizer::Optimizer(FlatParams params, double lr)
    : params_(std::move(params)),
      lr_value_(lr),
      lr_(full({1}, lr, f32, params_.device())),
      step_(zeros({1}, i64, params_.device())),
      one_(ones({1}, f64, params_.device())) {}

void Optimizer::set_lr(double lr) {
  lr_value_ = lr;
  lr_.fill_(lr);
}

Tensor Optimizer::clip(double max_norm, LossScaler* scaler) {
  NoGrad guard;
  params_.finish_grads();
  finished_ = true;
  Tensor norm = sqrt(sum_of_squares(params_.grads()));
  if (scaler) {
    grad_scale_ = scaler->inverse();
    norm = norm * grad_scale_;
    skip_ = scaler->update(norm);
  }
  if (max_norm > 0) {
    Tensor coefficient = clamp(full({1}, max_norm, f32, norm.device()) / (norm + 1e-6), 0, 1);
    grad_scale_ = grad_scale_.defined() ? grad_scale_ * coefficient : coefficient;
  }
  return norm;
}

void Optimizer::step() {
  NoGrad guard;
  if (!std::exchange(finished_, false)) params_.finish_grads();
  step_.copy_(step_.to(f64) + (skip_.defined() ? eq(skip_.to(f32), 0.0).to(f64) : one_));
  for (size_t i = 0; i < params_.groups().size(); ++i) update({params_.groups()[i], i, lr_, step_, grad_scale_, skip_});
  grad_scale_ = skip_ = {};
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> out{{"step", step_}};
  Tensors masters;
  for (const FlatGroup& g : params_.groups()) masters.push_back(g.masters);
  params_.name_parts("master.", masters, out);
  list_state(out);
  return out;
}

AdamW::AdamW(FlatParams params, const AdamWArgs& args)
    : Optimizer(std::move(params), args.lr), args_(args), m_(params_.like(f32)), v_(params_.like(f32)) {}

void AdamW::update(const Update& u) {
  AdamWArgs args = args_;
  if (!u.group.decays) args.weight_decay = 0;
  adamw_step(u.group.params, u.group.masters, u.group.grads, m_[u.index], v_[u.index], u.lr, u.step, args, u.grad_scale,
             u.skip);
}

void AdamW::list_state(std::vector<NamedTensor>& out) const {
  params_.name_parts("exp_avg.", m_, out);
  params_.name_parts("exp_avg_sq.", v_, out);
}

SGD::SGD(FlatParams params, double lr, const SgdArgs& args) : Optimizer(std::move(params), lr), args_(args) {
  if (args.momentum != 0)
    momentum_ = params_.like(f32);
  else
    momentum_.resize(params_.groups().size());
}

void SGD::update(const Update& u) {
  SgdArgs args = args_;
  if (!u.group.decays) args.weight_decay = 0;
  sgd_step(u.group.params, u.group.masters, u.group.grads, momentum_[u.index], u.lr, args, u.grad_scale, u.skip);
}

void SGD::list_state(std::vector<NamedTensor>& out) const { params_.name_parts("momentum.", momentum_, out); }

}  // namespace xylem
