// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, 2019), with the semantics of torch.optim.
#include <cmath>

#include "ops/optim/update.h"

namespace xylem {
namespace {

struct AdamW {
  static constexpr std::array<const char*, 2> kStates = {"m", "v"};
  template <class A>
  struct Factors {
    A beta1, beta2, eps, keep, rate, root;
  };
  double beta1, beta2, eps, weight_decay;

  template <class A>
  XY_HD Factors<A> factors(double lr, double step) const {
    return {A(beta1),
            A(beta2),
            A(eps),
            A(1 - lr * weight_decay),
            A(lr / (1 - ::pow(beta1, step))),
            A(1 / ::sqrt(1 - ::pow(beta2, step)))};
  }
  template <class A>
  static XY_HD A move(const Factors<A>& f, A p, A g, A* state) {
    A &m = state[0], &v = state[1];
    m = f.beta1 * m + (1 - f.beta1) * g;
    v = f.beta2 * v + (1 - f.beta2) * g * g;
    return p * f.keep - f.rate * m / (std::sqrt(v) * f.root + f.eps);
  }
};

}  // namespace

void adamw_step(const Tensor& param, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
                const Tensor& lr, const Tensor& step, const AdamWArgs& args, const Tensor& grad_scale,
                const Tensor& skip) {
  OpScope scope("adamw_step");
  XY_CHECK(step.defined(), "step is undefined");
  update::run(AdamW{args.beta1, args.beta2, args.eps, args.weight_decay}, {.param = param,
                                                                           .master = master,
                                                                           .grad = grad,
                                                                           .states = {m, v},
                                                                           .lr = lr,
                                                                           .step = step,
                                                                           .grad_scale = grad_scale,
                                                                           .skip = skip});
}

}  // namespace xylem
