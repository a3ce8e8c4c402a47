// SPDX-License-Identifier: Apache-2.0
// Square roots and powers with a constant exponent.
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Sqrt {
  static constexpr pointwise::OnnxOperator onnx{"Sqrt"};
  static constexpr double sample_low = 0.1, sample_high = 4;
  template <class A>
  static XY_HD A fwd(A x) {
    return math::sqrt(x);
  }
  template <class A>
  static XY_HD A bwd_from_output(A dy, A y) {
    return A(0.5) * dy / y;
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& y) { return dy * 0.5 / y; }
};

struct Rsqrt {
  static std::string onnx_composed(OnnxBuilder& onnx, const std::string& x) {
    return onnx.node("Reciprocal", {onnx.node("Sqrt", {x})});
  }
  static constexpr double sample_low = 0.1, sample_high = 4;
  template <class A>
  static XY_HD A fwd(A x) {
    return A(1) / math::sqrt(x);
  }
  template <class A>
  static XY_HD A bwd_from_output(A dy, A y) {
    return A(-0.5) * dy * y * y * y;
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& y) { return dy * -0.5 * y * y * y; }
};

struct Square {
  template <class A>
  static XY_HD A fwd(A x) {
    return x * x;
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return A(2) * x * dy;
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) { return dy * x * 2.0; }
};

struct Power {
  double exponent;
  template <class A>
  XY_HD A fwd(A x) const {
    return math::pow(x, A(exponent));
  }
  template <class A>
  XY_HD A bwd(A dy, A x) const {
    return exponent == 0 ? A(0) : dy * A(exponent) * math::pow(x, A(exponent - 1));
  }
  Tensor bwd_ops(const Tensor& dy, const Tensor& x) const {
    return exponent == 0 ? zeros_like(x) : dy * exponent * pow(x, exponent - 1);
  }
};

const OpSpec& kPow =
    (new OpSpec("pow_scalar"))
        ->double_backward()
        .onnx([](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
          const double e = op.number("exponent");
          if (e == 2) return {onnx.node("Mul", {op.inputs[0], op.inputs[0]})};
          return {onnx.node("Pow", {op.inputs[0], onnx.scalar(e)})};
        })
        .flops([](auto in, auto) { return double(in[0].numel()); })
        .samples([] {
          std::vector<Sample> samples;
          for (double e : {2.0, 1.7, -1.0, 0.5, 0.0})
            samples.push_back({"exponent " + std::to_string(e),
                               {sample_uniform({3, 5}, 0.3, 2)},
                               [e](const Tensors& t) -> Tensors { return {pow(t[0], e)}; }});
          samples.push_back({"negative base", {sample_uniform({7}, -2, -0.5)}, [](const Tensors& t) -> Tensors {
                               return {pow(t[0], 3.0)};
                             }});
          samples.push_back(
              {"empty", {sample_uniform({0})}, [](const Tensors& t) -> Tensors { return {pow(t[0], 3.0)}; }});
          return samples;
        });

}  // namespace

XY_POINTWISE(sqrt, Sqrt)
XY_POINTWISE(rsqrt, Rsqrt)

Tensor pow(const Tensor& a, double exponent) {
  if (exponent == 0.5) return sqrt(a);
  if (exponent == 2) return pointwise::unary(kPow, a, Square{}, {{"exponent", 2.0}});
  return pointwise::unary(kPow, a, Power{exponent}, {{"exponent", exponent}});
}

}  // namespace xylem
