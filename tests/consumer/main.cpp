// SPDX-License-Identifier: Apache-2.0
#include <xylem/xylem.h>

#include <cstdio>

namespace xy = xylem;

struct Net : xy::Module {
  xy::Linear first{2, 64}, second{64, 64}, last{64, 2};
  XY_MEMBERS(first, second, last)
  xy::Tensor operator()(const xy::Tensor& x) const { return last(xy::relu(second(xy::relu(first(x))))); }
};

int main() {
  xy::rng::seed(1);
  xy::Device device = xy::Device::parse("auto");  // the first GPU if there is one
  Net net;
  net.to(device);
  xy::AdamW optimizer(net, {.lr = 1e-2});

  // Points in a square; the class says which lie inside a circle.
  xy::Tensor x = 2.0 * xy::rand({1024, 2}, xy::f32, device) - 1.0;
  xy::Tensor inside = xy::lt(xy::sum(x * x, {1}), 0.5).to(xy::i64);

  for (int step = 0; step <= 200; ++step) {
    xy::Tensor loss = xy::cross_entropy(net(x), inside);
    optimizer.zero_grad();
    loss.backward();
    optimizer.clip(1.0);
    optimizer.step();
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item());
  }

  xy::NoGrad guard;
  double accuracy = xy::mean(xy::eq(xy::argmax(net(x)), inside).to(xy::f32)).item();
  std::printf("accuracy %.1f %%\n", 100 * accuracy);
  return accuracy > 0.97 ? 0 : 1;
}
