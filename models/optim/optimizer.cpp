// SPDX-License-Identifier: Apache-2.0
#include "models/optim/optimizer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace xylem {

void check_decay_rate(const char* name, double value) {
  XY_CHECK(value >= 0 && value < 1, name, " must be at least 0 and below 1, but is ", value);
}

Optimizer::Optimizer(FlatParams params, double lr, const std::vector<std::string>& rules)
    : params_(std::move(params)),
      lr_value_(lr),
      step_(zeros({1}, i64, params_.device())),
      one_(ones({1}, f64, params_.device())) {
  for (const FlatGroup& g : params_.groups()) {
    XY_CHECK(std::count(rules.begin(), rules.end(), g.options.rule), "'", g.slots[0].name,
             "' shall be updated by the rule '", g.options.rule, "', which this optimizer does not have");
    lr_.push_back(zeros({1}, f32, params_.device()));
  }
  set_lr(lr);
}

void Optimizer::set_lr(double lr) {
  lr_value_ = lr;
  for (size_t i = 0; i < lr_.size(); ++i) lr_[i].fill_(lr * params_.groups()[i].options.lr);
}

Tensor Optimizer::clip(double max_norm, LossScaler* scaler, const Tensor& factor) {
  NoGrad guard;
  params_.refresh();
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
  params_.refresh();
  if (!std::exchange(finished_, false)) params_.finish_grads();
  if (!std::exchange(warned_, true)) warn_of_strays();
  step_.copy_(step_.to(f64) + (skip_.defined() ? eq(skip_.to(f32), 0.0).to(f64) : one_));
  update_all(step_, grad_scale_, skip_);
  grad_scale_ = skip_ = {};
  params_.parallel().publish();
  params_.parallel().values_taken();
}

void Optimizer::warn_of_strays() {
  if (params_.parallel().group().rank() > 0) return;
  constexpr size_t kNamed = 5;
  std::vector<std::string> strays = detail::stray_parameters();
  if (strays.empty()) return;
  std::string text;
  for (size_t i = 0; i < std::min(strays.size(), kNamed); ++i) text += "\n  " + strays[i];
  if (strays.size() > kNamed) text += "\n  and " + std::to_string(strays.size() - kNamed) + " more";
  std::fprintf(stderr,
               "xylem: parameters have gradients, but no optimizer was made over a module that lists them; they are "
               "neither trained nor saved:%s\n  name the member in its module's XY_MEMBERS, or freeze it "
               "(requires_grad(false)) if it shall not be trained\n",
               text.c_str());
}

void Optimizer::update_all(const Tensor& step, const Tensor& grad_scale, const Tensor& skip) {
  for (const FlatSpan& span : params_.spans())
    update({span, params_.groups()[span.group].options, lr_of(span.group), step, grad_scale, skip});
}

std::vector<std::pair<std::string, Tensors>> Optimizer::all_buffers() const {
  Tensors masters;
  for (const FlatGroup& g : params_.groups()) masters.push_back(g.masters);
  auto all = buffers();
  all.insert(all.begin(), {"master.", masters});
  return all;
}

std::vector<NamedTensor> Optimizer::state() const {
  params_.refresh();
  std::vector<NamedTensor> out{{"step", step_}};
  for (const auto& [prefix, tensors] : all_buffers()) params_.name_parts(prefix, tensors, out);
  return out;
}

std::vector<TensorShard> Optimizer::shards() const {
  params_.refresh();
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

}  // namespace xylem
