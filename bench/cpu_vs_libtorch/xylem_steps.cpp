// SPDX-License-Identifier: Apache-2.0
// The workloads in Xylem: forward, loss, backward, clipping, AdamW.
#include "bench/cpu_vs_libtorch/steps.h"
#include "core/random/rng.h"
#include "models/optim/optimizer.h"
#include "models/optim/optimizers.h"
#include "models/zoo/zoo.h"

namespace {

void train(xylem::ZooModel& model, const xylem::Tensor& input, const xylem::Tensor& target, int steps) {
  xylem::AdamW optimizer(model, {.lr = 1e-3, .weight_decay = 0.1});
  time_steps(steps, [&] {
    xylem::Tensor loss = model.loss(input, target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.clip(1.0);
    optimizer.step();
    return loss.item();
  });
}

void gpt(const Gpt& c, int steps) {
  xylem::rng::seed(1);
  auto model = xylem::zoo::create(
      "gpt2",
      {{"vocab", c.vocab}, {"context", c.sequence}, {"layers", c.layers}, {"heads", c.heads}, {"width", c.width}});
  xylem::Tensor tokens = (xylem::rand({c.batch, c.sequence + 1}) * double(c.vocab)).to(xylem::i64);
  train(*model, tokens.slice(1, 0, c.sequence).contiguous(), tokens.slice(1, 1, c.sequence + 1).contiguous(), steps);
}

void cnn(const Cnn& c, int steps) {
  xylem::rng::seed(1);
  auto model = xylem::zoo::create(
      "resnet_small", {{"classes", c.classes}, {"width", c.width}, {"blocks", c.blocks}, {"stages", c.stages}});
  xylem::Tensor labels = (xylem::rand({c.batch}) * double(c.classes)).to(xylem::i64);
  train(*model, xylem::randn({c.batch, 1, 28, 28}), labels, steps);
}

}  // namespace

int main(int argc, char** argv) { return run_steps(argc, argv, gpt, cnn); }
