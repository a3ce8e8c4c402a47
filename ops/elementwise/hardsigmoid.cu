// SPDX-License-Identifier: Apache-2.0
// The sigmoid in three straight pieces (Courbariaux, Bengio and David, 2015).
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

// alpha x + beta, cut to [0, 1]. A NaN stays a NaN.
struct HardSigmoid {
  double alpha, beta;
  static constexpr pointwise::OnnxOperator onnx{"HardSigmoid", 13, {{"alpha", 0.2}, {"beta", 0.5}}};
  template <class A>
  XY_HD A fwd(A x) const {
    A y = A(alpha) * x + A(beta);
    y = y < A(0) ? A(0) : y;
    return y > A(1) ? A(1) : y;
  }
  // By the input: a result that rounding has made 1 still has its slope.
  template <class A>
  XY_HD A bwd(A dy, A x) const {
    A y = A(alpha) * x + A(beta);
    return y <= A(0) || y >= A(1) ? A(0) : A(alpha) * dy;
  }
  Tensor bwd_ops(const Tensor& dy, const Tensor& x) const {
    return dy * no_grad([&] {
             Tensor y = x * alpha + beta;
             return gt(y, 0).to(dy.dtype()) * lt(y, 1).to(dy.dtype()) * alpha;
           });
  }
};

const OpSpec& kHardSigmoid =
    pointwise::spec_of<HardSigmoid>("hardsigmoid", [](const Tensor& x) { return hardsigmoid(x, 0.3, 0.47); });

}  // namespace

Tensor hardsigmoid(const Tensor& x, double alpha, double beta) {
  return pointwise::unary(kHardSigmoid, x, HardSigmoid{alpha, beta});
}

}  // namespace xylem
