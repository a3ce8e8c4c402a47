// SPDX-License-Identifier: Apache-2.0
// mish(x) = x tanh(softplus(x)) (Misra, 2019).
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Mish {
  static constexpr pointwise::OnnxOperator onnx{"Mish", 18};
  static std::string onnx_composed(OnnxBuilder& onnx, const std::string& x) {
    return onnx.node("Mul", {x, onnx.node("Tanh", {onnx.node("Softplus", {x})})});
  }
  // tanh(softplus(x)) = n / (n + 2) with e = exp(x) and n = e (e + 2); 1 in every type from x = 20 on.
  template <class A>
  static XY_HD A gate(A x) {
    A e = math::exp(x > A(20) ? A(20) : x), n = e * (e + A(2));
    return n / (n + A(2));
  }
  template <class A>
  static XY_HD A fwd(A x) {
    return x * gate(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    A t = gate(x);
    return dy * (t + x * (A(1) - t * t) * math::sigmoid(x));
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) {
    Tensor t = tanh(softplus(x));
    return dy * (t + x * (1.0 - t * t) * sigmoid(x));
  }
};

}  // namespace

XY_POINTWISE(mish, Mish)

}  // namespace xylem
