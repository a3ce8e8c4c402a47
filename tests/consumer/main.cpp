// SPDX-License-Identifier: Apache-2.0
// Uses an installed Xylem: fits y = 3x - 1 and exits non-zero if that fails.
#include <xylem/xylem.h>

#include <cmath>
#include <cstdio>

namespace xy = xylem;

int main() {
  xy::rng::seed(1);
  xy::Linear model(1, 1);
  xy::Tensor x = xy::rand({64, 1}), y = x * 3.0 - 1.0;
  double loss = 0;
  for (int step = 0; step < 500; ++step) {
    xy::Tensor l = xy::mse_loss(model(x), y);
    model.zero_grad();
    l.backward();
    xy::NoGrad guard;
    for (const auto& [name, p] : model.parameters()) p.add_(p.grad(), -0.3);
    loss = l.item();
  }
  std::printf("loss %.2e, weight %.4f, bias %.4f\n", loss, model.weight.item(), model.bias.item());
  return loss < 1e-6 && std::fabs(model.weight.item() - 3) < 1e-2 ? 0 : 1;
}
