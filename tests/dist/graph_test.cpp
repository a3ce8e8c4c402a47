// SPDX-License-Identifier: Apache-2.0
// A whole distributed step, collectives included, captured in one CUDA graph.
#include "core/device/graph.h"
#include "tests/dist/training.h"

namespace xylem {
namespace {

std::vector<double> train_gpt2(bool graph, int zero, int steps) {
  Device device = Device::cuda();
  ParallelOptions parallel = on_world(zero);
  const Group& group = parallel.group;
  rng::seed(3);
  std::unique_ptr<ZooModel> model = small_gpt2()();
  model->to(device);
  model->to(bf16);
  AdamW optimizer(FlatParams(*model, {.parallel = parallel}), {.lr = 0.01});
  auto [tokens, targets] = make_batch(*model, 2 * group.size(), 0);
  tokens = tokens.narrow(0, 2 * group.rank(), 2).contiguous().to(device);
  targets = targets.narrow(0, 2 * group.rank(), 2).contiguous().to(device);
  Tensor loss = zeros({1}, f32, device), norm = zeros({1}, f32, device);
  auto step = [&] {
    optimizer.zero_grad();
    Tensor value = model->loss(tokens, targets);
    value.backward();
    norm.copy_(optimizer.clip(1.0));
    optimizer.step();
    no_grad([&] { loss.copy_(value.detach().reshape({1})); });
  };
  std::vector<double> losses;
  CudaGraph captured;
  for (int i = 0; i < steps; ++i) {
    if (graph && i == 2) captured.capture(device, step);  // after two steps that warm everything up
    graph&& i >= 2 ? captured.replay() : step();
    losses.push_back(average(group, loss.item(), device));
  }
  return losses;
}

TEST(GraphCuda, DistributedStepReplays) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  for (int zero : {0, 1}) {
    std::vector<double> plain = train_gpt2(false, zero, 8), replayed = train_gpt2(true, zero, 8);
    EXPECT_LT(distance(replayed, plain), 1e-6) << "ZeRO " << zero;
    EXPECT_LT(plain.back(), plain.front());
  }
}

}  // namespace
}  // namespace xylem
