// SPDX-License-Identifier: Apache-2.0
// Exponential linear units (Clevert, Unterthiner and Hochreiter, 2015).
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

// alpha (e^x - 1) below 0. The slope there is alpha e^x, with alpha its limit at 0.
struct Elu {
  double alpha;
  static constexpr pointwise::OnnxOperator onnx{"Elu", 13, {{"alpha", 1}}};
  template <class A>
  XY_HD A fwd(A x) const {
    return x < A(0) ? A(alpha) * math::expm1(x) : x;
  }
  template <class A>
  XY_HD A bwd(A dy, A x) const {
    return x < A(0) ? dy * A(alpha) * math::exp(x) : dy;
  }
  Tensor bwd_ops(const Tensor& dy, const Tensor& x) const {
    Tensor below = no_grad([&] { return lt(x, 0); });
    return where(below, dy * exp(clamp(x, -INFINITY, 0)) * alpha, dy);
  }
};

const OpSpec& kElu = pointwise::spec_of<Elu>("elu", [](const Tensor& x) { return elu(x, 0.7); });

}  // namespace

Tensor elu(const Tensor& x, double alpha) { return pointwise::unary(kElu, x, Elu{alpha}); }

}  // namespace xylem
