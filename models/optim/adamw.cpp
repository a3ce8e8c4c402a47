// SPDX-License-Identifier: Apache-2.0
#include "models/optim/optimizers.h"
#include "models/optim/registry.h"

namespace xylem {
namespace {

void check(const AdamWArgs& a) {
  check_decay_rate("beta1", a.beta1);
  check_decay_rate("beta2", a.beta2);
  XY_CHECK(a.eps >= 0, "eps must not be negative, but is ", a.eps);
}

[[maybe_unused]] const bool kRegistered = register_optimizer<AdamWArgs>(
    "adamw", "Adam with decoupled weight decay",
    [](OptionTable& option, AdamWArgs& a) {
      option("beta1", a.beta1, "decay of the mean of gradients");
      option("beta2", a.beta2, "decay of the mean of squared gradients");
      option("eps", a.eps, "added to the root");
    },
    check,
    [](Module& module, const FlatOptions& flat, const AdamWArgs& a) -> std::unique_ptr<Optimizer> {
      return std::make_unique<AdamW>(FlatParams(module, flat), a);
    });

}  // namespace

AdamW::AdamW(FlatParams params, const AdamWArgs& args)
    : Optimizer(std::move(params), args.lr), args_(args), m_(params_.like(f32)), v_(params_.like(f32)) {
  check(args);
}

void AdamW::update(const Update& u) {
  AdamWArgs args = args_;
  args.weight_decay = u.options.weight_decay.value_or(args.weight_decay);
  args.beta1 = u.options.beta1.value_or(args.beta1);
  args.beta2 = u.options.beta2.value_or(args.beta2);
  const FlatSpan& s = u.span;
  adamw_step(s.params, s.masters, s.grads, s.state(m_[s.group]), s.state(v_[s.group]), u.lr, u.step, args, u.grad_scale,
             u.skip);
}

std::vector<std::pair<std::string, Tensors>> AdamW::buffers() const { return {{"exp_avg.", m_}, {"exp_avg_sq.", v_}}; }

}  // namespace xylem
