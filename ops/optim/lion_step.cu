// SPDX-License-Identifier: Apache-2.0
// Lion (Chen et al., NeurIPS 2023): steps of one size, in the direction of a mean of gradients.
#include "ops/optim/update.h"

namespace xylem {
namespace {

struct Lion {
  static constexpr std::array<const char*, 1> kStates = {"m"};
  template <class A>
  struct Factors {
    A beta1, beta2, keep, lr;
  };
  double beta1, beta2, weight_decay;

  template <class A>
  XY_HD Factors<A> factors(double lr, double /*step*/) const {
    return {A(beta1), A(beta2), A(1 - lr * weight_decay), A(lr)};
  }
  template <class A>
  static XY_HD A move(const Factors<A>& f, A p, A g, A* state) {
    A& m = state[0];
    const A c = f.beta1 * m + (1 - f.beta1) * g;
    m = f.beta2 * m + (1 - f.beta2) * g;
    const A sign = c > A(0) ? A(1) : c < A(0) ? A(-1) : c;  // a NaN stays one
    return p * f.keep - f.lr * sign;
  }
};

}  // namespace

void lion_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& lr,
               const LionArgs& args, const Tensor& grad_scale, const Tensor& skip) {
  OpScope scope("lion_step");
  update::run(Lion{args.beta1, args.beta2, args.weight_decay}, {.param = param,
                                                                .master = master,
                                                                .grad = grad,
                                                                .states = {m},
                                                                .lr = lr,
                                                                .step = {},
                                                                .grad_scale = grad_scale,
                                                                .skip = skip});
}

}  // namespace xylem
