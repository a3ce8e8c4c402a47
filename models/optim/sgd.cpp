// SPDX-License-Identifier: Apache-2.0
#include "models/optim/optimizers.h"
#include "models/optim/registry.h"

namespace xylem {
namespace {

struct Args : SgdArgs {
  double lr = 1e-3;
};

void check(const SgdArgs& a) {
  check_decay_rate("momentum", a.momentum);
  XY_CHECK(!a.nesterov || a.momentum > 0, "nesterov needs a momentum greater than 0");
}

[[maybe_unused]] const bool kRegistered = register_optimizer<Args>(
    "sgd", "stochastic gradient descent with momentum",
    [](OptionTable& option, Args& a) {
      a.momentum = 0.9;
      option("momentum", a.momentum, "decay of the sum of gradients that a step follows");
      option("nesterov", a.nesterov, "look ahead");
    },
    check,
    [](Module& module, const FlatOptions& flat, const Args& a) -> std::unique_ptr<Optimizer> {
      return std::make_unique<SGD>(FlatParams(module, flat), a.lr, a);
    });

}  // namespace

SGD::SGD(FlatParams params, double lr, const SgdArgs& args) : Optimizer(std::move(params), lr), args_(args) {
  check(args);
  if (args.momentum != 0)
    momentum_ = params_.like(f32);
  else
    momentum_.resize(params_.groups().size());
}

void SGD::update(const Update& u) {
  SgdArgs args = args_;
  args.weight_decay = u.options.weight_decay.value_or(args.weight_decay);
  const FlatSpan& s = u.span;
  const Tensor& momentum = momentum_[s.group];
  sgd_step(s.params, s.masters, s.grads, momentum.defined() ? s.state(momentum) : Tensor(), u.lr, args, u.grad_scale,
           u.skip);
}

std::vector<std::pair<std::string, Tensors>> SGD::buffers() const { return {{"momentum.", momentum_}}; }

}  // namespace xylem
