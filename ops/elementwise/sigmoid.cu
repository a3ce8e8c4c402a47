// SPDX-License-Identifier: Apache-2.0
// The S-shaped functions: sigmoid, tanh and erf.
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Sigmoid {
  static constexpr pointwise::OnnxOperator onnx{"Sigmoid"};
  template <class A>
  static XY_HD A fwd(A x) {
    return math::sigmoid(x);
  }
  template <class A>
  static XY_HD A bwd_from_output(A dy, A y) {
    return dy * y * (A(1) - y);
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& y) { return dy * y * (1.0 - y); }
};

struct Tanh {
  static constexpr pointwise::OnnxOperator onnx{"Tanh"};
  template <class A>
  static XY_HD A fwd(A x) {
    return math::tanh(x);
  }
  template <class A>
  static XY_HD A bwd_from_output(A dy, A y) {
    return dy * (A(1) - y * y);
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& y) { return dy * (1.0 - y * y); }
};

struct Erf {
  static constexpr pointwise::OnnxOperator onnx{"Erf"};
  static constexpr double kSlope = 1.12837916709551257390;  // 2 / sqrt(pi)
  template <class A>
  static XY_HD A fwd(A x) {
    return math::erf(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return dy * A(kSlope) * math::exp(-x * x);
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) { return dy * exp(x * x * -1.0) * kSlope; }
};

}  // namespace

XY_POINTWISE(sigmoid, Sigmoid)
XY_POINTWISE(tanh, Tanh)
XY_POINTWISE(erf, Erf)

}  // namespace xylem
