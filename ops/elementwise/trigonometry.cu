// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Sin {
  static constexpr pointwise::OnnxOperator onnx{"Sin"};
  template <class A>
  static XY_HD A fwd(A x) {
    return math::sin(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return dy * math::cos(x);
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) { return dy * cos(x); }
};

struct Cos {
  static constexpr pointwise::OnnxOperator onnx{"Cos"};
  template <class A>
  static XY_HD A fwd(A x) {
    return math::cos(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return -dy * math::sin(x);
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) { return -dy * sin(x); }
};

}  // namespace

XY_POINTWISE(sin, Sin)
XY_POINTWISE(cos, Cos)

}  // namespace xylem
