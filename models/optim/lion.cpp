// SPDX-License-Identifier: Apache-2.0
#include "models/optim/optimizers.h"
#include "models/optim/registry.h"

namespace xylem {
namespace {

void check(const LionArgs& a) {
  check_decay_rate("beta1", a.beta1);
  check_decay_rate("beta2", a.beta2);
}

[[maybe_unused]] const bool kRegistered = register_optimizer<LionArgs>(
    "lion", "the sign of a mean of gradients; lr about a tenth of adamw's, weight_decay ten times",
    [](OptionTable& option, LionArgs& a) {
      option("beta1", a.beta1, "share of the kept mean in the direction of a step");
      option("beta2", a.beta2, "decay of the mean of gradients");
    },
    check,
    [](Module& module, const FlatOptions& flat, const LionArgs& a) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Lion>(FlatParams(module, flat), a);
    });

}  // namespace

Lion::Lion(FlatParams params, const LionArgs& args)
    : Optimizer(std::move(params), args.lr), args_(args), m_(params_.like(f32)) {
  check(args);
}

void Lion::update(const Update& u) {
  LionArgs args = args_;
  args.weight_decay = u.options.weight_decay.value_or(args.weight_decay);
  args.beta1 = u.options.beta1.value_or(args.beta1);
  args.beta2 = u.options.beta2.value_or(args.beta2);
  const FlatSpan& s = u.span;
  lion_step(s.params, s.masters, s.grads, s.state(m_[s.group]), u.lr, args, u.grad_scale, u.skip);
}

std::vector<std::pair<std::string, Tensors>> Lion::buffers() const { return {{"exp_avg.", m_}}; }

}  // namespace xylem
