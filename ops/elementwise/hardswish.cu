// SPDX-License-Identifier: Apache-2.0
// hardswish(x) = x hardsigmoid(x) with slope 1/6 (Howard et al., 2019).
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct HardSwish {
  static constexpr pointwise::OnnxOperator onnx{"HardSwish", 14};
  static std::string onnx_composed(OnnxBuilder& onnx, const std::string& x) {
    return onnx.node("Mul", {x, onnx.node("HardSigmoid", {x}, {{"alpha", 1.0 / 6}, {"beta", 0.5}})});
  }
  template <class A>
  static XY_HD A gate(A x) {
    A y = x / A(6) + A(0.5);
    y = y < A(0) ? A(0) : y;
    return y > A(1) ? A(1) : y;
  }
  template <class A>
  static XY_HD A fwd(A x) {
    return x * gate(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return x <= A(-3) ? A(0) : x >= A(3) ? dy : dy * (x / A(3) + A(0.5));
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) {
    Tensor inside = no_grad([&] { return gt(x, -3).to(dy.dtype()) * lt(x, 3).to(dy.dtype()); });
    Tensor above = no_grad([&] { return 1.0 - lt(x, 3).to(dy.dtype()); });
    return dy * (inside * (x * (1.0 / 3) + 0.5) + above);
  }
};

}  // namespace

XY_POINTWISE(hardswish, HardSwish)

}  // namespace xylem
