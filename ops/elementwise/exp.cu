// SPDX-License-Identifier: Apache-2.0
// exp, log and softplus.
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Exp {
  static constexpr pointwise::OnnxOperator onnx{"Exp"};
  template <class A>
  static XY_HD A fwd(A x) {
    return math::exp(x);
  }
  template <class A>
  static XY_HD A bwd_from_output(A dy, A y) {
    return dy * y;
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& y) { return dy * y; }
};

struct Log {
  static constexpr pointwise::OnnxOperator onnx{"Log"};
  static constexpr double sample_low = 0.1, sample_high = 4;
  template <class A>
  static XY_HD A fwd(A x) {
    return math::log(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return dy / x;
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) { return dy / x; }
};

// log(1 + e^x), written so that neither end overflows.
struct Softplus {
  static constexpr pointwise::OnnxOperator onnx{"Softplus"};
  template <class A>
  static XY_HD A fwd(A x) {
    A a = x < A(0) ? x : -x;
    return (x < A(0) ? A(0) : x) + math::log1p(math::exp(a));
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return dy * math::sigmoid(x);
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) { return dy * sigmoid(x); }
};

}  // namespace

XY_POINTWISE(exp, Exp)
XY_POINTWISE(log, Log)
XY_POINTWISE(softplus, Softplus)

}  // namespace xylem
