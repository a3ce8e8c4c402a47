// SPDX-License-Identifier: Apache-2.0
// Leaky rectified linear units (Maas, Hannun and Ng, 2013).
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct LeakyRelu {
  double alpha;
  static constexpr pointwise::OnnxOperator onnx{"LeakyRelu", 13, {{"alpha", 0.01}}};
  template <class A>
  XY_HD A fwd(A x) const {
    return x < A(0) ? A(alpha) * x : x;
  }
  template <class A>
  XY_HD A bwd(A dy, A x) const {
    return x < A(0) ? A(alpha) * dy : dy;
  }
  Tensor bwd_ops(const Tensor& dy, const Tensor& x) const {
    return where(no_grad([&] { return lt(x, 0); }), dy * alpha, dy);
  }
};

const OpSpec& kLeakyRelu =
    pointwise::spec_of<LeakyRelu>("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); });

}  // namespace

Tensor leaky_relu(const Tensor& x, double alpha) { return pointwise::unary(kLeakyRelu, x, LeakyRelu{alpha}); }

}  // namespace xylem
