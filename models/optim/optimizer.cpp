// SPDX-License-Identifier: Apache-2.0
#include "models/optim/optimizer.h"

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

Tensor Optimizer::clip(double max_norm, LossScaler* scaler, const Tensor& factor) {
  NoGrad guard;
  params_.finish_grads();
  finished_ = true;
  Tensor norm = sqrt(params_.squared_norm()).to(f32);
  auto scale = [&](const Tensor& by) { grad_scale_ = grad_scale_.defined() ? grad_scale_ * by : by; };
  if (scaler) scale(scaler->inverse());
  if (factor.defined()) scale(factor);
  if (grad_scale_.defined()) norm = norm * grad_scale_;
  if (scaler) skip_ = scaler->update(norm);
  if (max_norm > 0) scale(clamp(full({1}, max_norm, f32, norm.device()) / (norm + 1e-6), 0, 1));
  return norm;
}

void Optimizer::step() {
  NoGrad guard;
  if (!std::exchange(finished_, false)) params_.finish_grads();
  step_.copy_(step_.to(f64) + (skip_.defined() ? eq(skip_.to(f32), 0.0).to(f64) : one_));
  for (const FlatSpan& span : params_.spans())
    update({span, params_.groups()[span.group].decays, lr_, step_, grad_scale_, skip_});
  grad_scale_ = skip_ = {};
  params_.parallel().publish();
}

std::vector<std::pair<std::string, Tensors>> Optimizer::all_buffers() const {
  Tensors masters;
  for (const FlatGroup& g : params_.groups()) masters.push_back(g.masters);
  auto all = buffers();
  all.insert(all.begin(), {"master.", masters});
  return all;
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> out{{"step", step_}};
  for (const auto& [prefix, tensors] : all_buffers()) params_.name_parts(prefix, tensors, out);
  return out;
}

std::vector<TensorShard> Optimizer::shards() const {
  std::vector<TensorShard> out{{.name = "step", .shape = step_.shape(), .part = step_, .everywhere = true}};
  for (const auto& [prefix, tensors] : all_buffers()) params_.list_shards(prefix, tensors, out);
  return out;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [prefix, tensors] : all_buffers())
    for (const Tensor& t : tensors)
      if (t.defined()) bytes += int64_t(t.nbytes());
  return bytes;
}

AdamW::AdamW(FlatParams params, const AdamWArgs& args)
    : Optimizer(std::move(params), args.lr), args_(args), m_(params_.like(f32)), v_(params_.like(f32)) {}

void AdamW::update(const Update& u) {
  AdamWArgs args = args_;
  if (!u.decays) args.weight_decay = 0;
  const FlatSpan& s = u.span;
  adamw_step(s.params, s.masters, s.grads, s.state(m_[s.group]), s.state(v_[s.group]), u.lr, u.step, args, u.grad_scale,
             u.skip);
}

std::vector<std::pair<std::string, Tensors>> AdamW::buffers() const { return {{"exp_avg.", m_}, {"exp_avg_sq.", v_}}; }

SGD::SGD(FlatParams params, double lr, const SgdArgs& args) : Optimizer(std::move(params), lr), args_(args) {
  if (args.momentum != 0)
    momentum_ = params_.like(f32);
  else
    momentum_.resize(params_.groups().size());
}

void SGD::update(const Update& u) {
  SgdArgs args = args_;
  if (!u.decays) args.weight_decay = 0;
  const FlatSpan& s = u.span;
  const Tensor& momentum = momentum_[s.group];
  sgd_step(s.params, s.masters, s.grads, momentum.defined() ? s.state(momentum) : Tensor(), u.lr, args, u.grad_scale,
           u.skip);
}

std::vector<std::pair<std::string, Tensors>> SGD::buffers() const { return {{"momentum.", momentum_}}; }

}  // namespace xylem
