// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent with momentum, with the semantics of torch.optim.
#include "ops/optim/update.h"

namespace xylem {
namespace {

struct Plain {
  static constexpr std::array<const char*, 0> kStates = {};
  template <class A>
  struct Factors {
    A lr, decay;
  };
  double weight_decay;

  template <class A>
  XY_HD Factors<A> factors(double lr, double /*step*/) const {
    return {A(lr), A(weight_decay)};
  }
  template <class A>
  static XY_HD A move(const Factors<A>& f, A p, A g, A* /*state*/) {
    return p - f.lr * (g + f.decay * p);
  }
};

struct Momentum {
  static constexpr std::array<const char*, 1> kStates = {"momentum"};
  template <class A>
  struct Factors {
    A lr, decay, momentum;
    bool nesterov;
  };
  SgdArgs args;

  template <class A>
  XY_HD Factors<A> factors(double lr, double /*step*/) const {
    return {A(lr), A(args.weight_decay), A(args.momentum), args.nesterov};
  }
  template <class A>
  static XY_HD A move(const Factors<A>& f, A p, A g, A* state) {
    const A d = g + f.decay * p;
    state[0] = f.momentum * state[0] + d;
    return p - f.lr * (f.nesterov ? d + f.momentum * state[0] : state[0]);
  }
};

}  // namespace

void sgd_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& momentum, const Tensor& lr,
              const SgdArgs& args, const Tensor& grad_scale, const Tensor& skip) {
  OpScope scope("sgd_step");
  XY_CHECK(momentum.defined() || args.momentum == 0, "momentum ", args.momentum, " needs a momentum buffer");
  XY_CHECK(!args.nesterov || args.momentum > 0, "nesterov needs a momentum greater than 0");
  update::Buffers buffers{.param = param,
                          .master = master,
                          .grad = grad,
                          .states = {},
                          .lr = lr,
                          .step = {},
                          .grad_scale = grad_scale,
                          .skip = skip};
  if (args.momentum == 0) return update::run(Plain{args.weight_decay}, buffers);
  buffers.states = {momentum};
  update::run(Momentum{args}, buffers);
}

}  // namespace xylem
