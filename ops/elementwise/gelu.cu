// SPDX-License-Identifier: Apache-2.0
// Gaussian error linear units (Hendrycks and Gimpel, 2016).
#include <numbers>

#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

inline constexpr double kInvSqrt2 = 0.70710678118654752440, kInvSqrt2Pi = 0.39894228040143267794;

std::string half_of(OnnxBuilder& onnx, const std::string& x) { return onnx.node("Mul", {x, onnx.scalar(0.5)}); }

struct Gelu {
  static constexpr pointwise::OnnxOperator onnx{"Gelu", 20};
  static std::string onnx_composed(OnnxBuilder& onnx, const std::string& x) {
    std::string erf = onnx.node("Erf", {onnx.node("Div", {x, onnx.scalar(std::numbers::sqrt2)})});
    return half_of(onnx, onnx.node("Mul", {x, onnx.node("Add", {erf, onnx.scalar(1)})}));
  }
  template <class A>
  static XY_HD A fwd(A x) {
    return A(0.5) * x * (A(1) + math::erf(x * A(kInvSqrt2)));
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    A cdf = A(0.5) * (A(1) + math::erf(x * A(kInvSqrt2)));
    return dy * (cdf + x * A(kInvSqrt2Pi) * math::exp(A(-0.5) * x * x));
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) {
    Tensor cdf = (erf(x * kInvSqrt2) + 1.0) * 0.5;
    return dy * (cdf + x * exp(x * x * -0.5) * kInvSqrt2Pi);
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr pointwise::OnnxOperator onnx{"Gelu", 20, {}, {"approximate", "tanh"}};
  static std::string onnx_composed(OnnxBuilder& onnx, const std::string& x) {
    std::string cube = onnx.node("Mul", {x, onnx.node("Mul", {x, x})});
    std::string inner = onnx.node("Add", {x, onnx.node("Mul", {cube, onnx.scalar(kCubic)})});
    std::string tanh = onnx.node("Tanh", {onnx.node("Mul", {inner, onnx.scalar(kSlope / 2)})});
    return half_of(onnx, onnx.node("Mul", {x, onnx.node("Add", {tanh, onnx.scalar(1)})}));
  }
  static constexpr double kSlope = 2 * 0.79788456080286535588, kCubic = 0.044715;
  template <class A>
  static XY_HD A fwd(A x) {
    return x * math::sigmoid(A(kSlope) * x * (A(1) + A(kCubic) * x * x));
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    A s = math::sigmoid(A(kSlope) * x * (A(1) + A(kCubic) * x * x));
    return dy * (s + x * s * (A(1) - s) * A(kSlope) * (A(1) + A(3 * kCubic) * x * x));
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) {
    Tensor square = x * x, s = sigmoid(x * (square * kCubic + 1.0) * kSlope);
    return dy * (s + x * s * (1.0 - s) * (square * (3 * kCubic) + 1.0) * kSlope);
  }
};

}  // namespace

XY_POINTWISE(gelu, Gelu)
XY_POINTWISE(gelu_tanh, GeluTanh)

}  // namespace xylem
