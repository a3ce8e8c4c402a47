// SPDX-License-Identifier: Apache-2.0
// A new operation in a program of one's own: Xylem is neither changed nor rebuilt. The functor becomes squareplus(x) on
// CPU and GPU, in every float type, with its gradient and its form in ONNX. docs/adding_an_op.md explains each part.
#include <xylem/xylem.h>

#include <cstdio>

#include "ops/elementwise/pointwise.h"

namespace xy = xylem;

// (x + sqrt(x^2 + 4)) / 2, a ReLU with a soft corner (Barron, 2021).
struct Squareplus {
  static std::string onnx_composed(xy::OnnxBuilder& onnx, const std::string& x) {
    std::string root = onnx.node("Sqrt", {onnx.node("Add", {onnx.node("Mul", {x, x}), onnx.scalar(4)})});
    return onnx.node("Mul", {onnx.node("Add", {x, root}), onnx.scalar(0.5)});
  }
  template <class A>
  static XY_HD A fwd(A x) {
    return A(0.5) * (x + xy::math::sqrt(x * x + A(4)));
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    return A(0.5) * dy * (A(1) + x / xy::math::sqrt(x * x + A(4)));
  }
};
XY_POINTWISE(squareplus, Squareplus)

int main() {
  xy::Device device = xy::Device::parse("auto");
  xy::rng::seed(1);
  xy::Tensor x = (xy::randn({256, 64}, xy::f32, device) * 3.0).set_requires_grad();

  // It agrees with the same thing put together from Xylem's operations, value and gradient.
  xy::Tensor y = squareplus(x), same = (x + xy::sqrt(x * x + 4.0)) * 0.5;
  xy::Tensor dy = xy::randn({256, 64}, xy::f32, device);
  double value = xy::amax(xy::abs(y - same)).item();
  double slope = xy::amax(xy::abs(xy::grad({y}, {x}, {dy})[0] - xy::grad({same}, {x}, {dy})[0])).item();
  std::printf("on %s: largest difference %.1e, of gradients %.1e\n", device.str().c_str(), value, slope);

  // And it trains: scale and shift of a * squareplus(x) + b fitted to 2 squareplus(x) - 1.
  xy::Tensor a = xy::zeros({1}, xy::f32, device).set_requires_grad();
  xy::Tensor b = xy::zeros({1}, xy::f32, device).set_requires_grad();
  xy::Tensor input = x.detach(), target = xy::no_grad([&] { return squareplus(input) * 2.0 - 1.0; });
  for (int step = 0; step < 100; ++step) {
    a.zero_grad(), b.zero_grad();
    xy::mse_loss(a * squareplus(input) + b, target).backward();
    xy::no_grad([&] { a.add_(a.grad(), -0.1), b.add_(b.grad(), -0.1); });
  }
  std::printf("fitted a = %.3f, b = %.3f\n", a.item(), b.item());
  return value < 1e-4 && slope < 1e-4 && std::abs(a.item() - 2) < 0.01 && std::abs(b.item() + 1) < 0.01 ? 0 : 1;
}
