// SPDX-License-Identifier: Apache-2.0
// Piecewise linear functions: relu, abs and clamp. A NaN stays a NaN.
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Relu {
  static constexpr pointwise::OnnxOperator onnx{"Relu"};
  template <class A>
  static XY_HD A fwd(A x) {
    return x < A(0) ? A(0) : x;
  }
  template <class A>
  static XY_HD A bwd_from_output(A dy, A y) {
    return y <= A(0) ? A(0) : dy;
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& y) {
    return dy * no_grad([&] { return gt(y, 0).to(dy.dtype()); });
  }
};

struct Abs {
  static constexpr pointwise::OnnxOperator onnx{"Abs"};
  template <class A>
  static XY_HD A fwd(A x) {
    return x < A(0) ? -x : x;
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return x < A(0) ? -dy : x > A(0) ? dy : A(0);
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) {
    return dy * no_grad([&] { return gt(x, 0).to(dy.dtype()) - lt(x, 0).to(dy.dtype()); });
  }
};

struct Clamp {
  double low, high;
  template <class A>
  XY_HD A fwd(A x) const {
    x = x < A(low) ? A(low) : x;
    return x > A(high) ? A(high) : x;
  }
  template <class A>
  XY_HD A bwd(A dy, A x) const {
    return x < A(low) || x > A(high) ? A(0) : dy;
  }
  Tensor bwd_ops(const Tensor& dy, const Tensor& x) const {
    return dy * no_grad([&] { return 1.0 - (lt(x, low).to(dy.dtype()) + gt(x, high).to(dy.dtype())); });
  }
};

const OpSpec& kClamp =
    pointwise::spec_of<Clamp>("clamp", [](const Tensor& x) -> Tensor { return clamp(x, -1.25, 0.75); })
        .onnx([](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
          return {onnx.node("Clip", {op.inputs[0], onnx.scalar(op.number("low")), onnx.scalar(op.number("high"))})};
        })
        .imports("Clip", [](const ImportedOp& node) -> Tensors {
          const double low = node.has(1) ? node.in(1).item() : -INFINITY;
          return {clamp(node.in(0), low, node.has(2) ? node.in(2).item() : INFINITY)};
        });

}  // namespace

XY_POINTWISE(relu, Relu)
XY_POINTWISE(abs, Abs)

Tensor clamp(const Tensor& x, double low, double high) {
  XY_CHECK(low <= high, "clamp: low = ", low, " is above high = ", high);
  return pointwise::unary(kClamp, x, Clamp{low, high}, {{"low", low}, {"high", high}});
}

}  // namespace xylem
