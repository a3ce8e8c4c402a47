// SPDX-License-Identifier: Apache-2.0
// A new operation in a program of one's own: Xylem is neither changed nor rebuilt. The functor becomes mish(x) on CPU
// and GPU, in every float type, with its gradient. docs/adding_an_op.md explains each part.
#include <xylem/xylem.h>

#include <cstdio>

#include "ops/elementwise/pointwise.h"

namespace xy = xylem;

// mish(x) = x tanh(softplus(x)) (Misra, 2019). With e = exp(x) and n = e (e + 2), tanh(softplus(x)) = n / (n + 2).
struct Mish {
  template <class A>
  static XY_HD A gate(A x) {
    A e = xy::math::exp(x < A(20) ? x : A(20)), n = e * (e + A(2));
    return n / (n + A(2));
  }
  template <class A>
  static XY_HD A fwd(A x) {
    return x * gate(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    A t = gate(x);
    return dy * (t + x * (A(1) - t * t) * xy::math::sigmoid(x));
  }
};
XY_POINTWISE(mish, Mish)

int main() {
  xy::Device device = xy::Device::parse("auto");
  xy::rng::seed(1);
  xy::Tensor x = (xy::randn({256, 64}, xy::f32, device) * 3.0).set_requires_grad();

  // It agrees with the same thing put together from Xylem's operations, value and gradient.
  xy::Tensor y = mish(x), same = x * xy::tanh(xy::softplus(x));
  xy::Tensor dy = xy::randn({256, 64}, xy::f32, device);
  double value = xy::amax(xy::abs(y - same)).item();
  double slope = xy::amax(xy::abs(xy::grad({y}, {x}, {dy})[0] - xy::grad({same}, {x}, {dy})[0])).item();
  std::printf("on %s: largest difference %.1e, of gradients %.1e\n", device.str().c_str(), value, slope);

  // And it trains: scale and shift of a * mish(x) + b fitted to 2 mish(x) - 1.
  xy::Tensor a = xy::zeros({1}, xy::f32, device).set_requires_grad();
  xy::Tensor b = xy::zeros({1}, xy::f32, device).set_requires_grad();
  xy::Tensor input = x.detach(), target = xy::no_grad([&] { return mish(input) * 2.0 - 1.0; });
  for (int step = 0; step < 100; ++step) {
    a.zero_grad(), b.zero_grad();
    xy::mse_loss(a * mish(input) + b, target).backward();
    xy::no_grad([&] { a.add_(a.grad(), -0.1), b.add_(b.grad(), -0.1); });
  }
  std::printf("fitted a = %.3f, b = %.3f\n", a.item(), b.item());
  return value < 1e-4 && slope < 1e-4 && std::abs(a.item() - 2) < 0.01 && std::abs(b.item() + 1) < 0.01 ? 0 : 1;
}
