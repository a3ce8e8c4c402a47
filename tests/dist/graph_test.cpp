// SPDX-License-Identifier: Apache-2.0
// A whole distributed step, collectives included, captured in one CUDA graph.
#include <chrono>
#include <thread>

#include "core/device/graph.h"
#include "distributed/record/recorder.h"
#include "models/loop/train_step.h"
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

// The trainer's step of two micro-batches: losses and norms of all steps, then what the model holds.
std::vector<std::vector<double>> trainer_steps(const Maker& make, bool cuda_graph, int zero, bool sync) {
  Device device = Device::cuda();
  ParallelOptions parallel = on_world(zero);
  const Group& group = parallel.group;
  rng::seed(3);
  std::unique_ptr<ZooModel> model = make();
  model->to(device);
  if (sync) use_sync_batch_norm(*model, group);
  AdamW optimizer(FlatParams(*model, {.parallel = parallel}), {.lr = 0.01});
  TrainStep step(*model, optimizer, {.micro_batches = 2, .clip = 1, .cuda_graph = cuda_graph});
  std::vector<std::vector<double>> numbers;
  const int64_t share = shared_batch() / group.size() / 2;
  for (int i = 0; i < 7; ++i) {
    auto [input, target] = make_batch(*model, shared_batch(), i);
    int64_t first = group.rank() * 2 * share;
    step.run([&, x = input, y = target] {
      Batch b{x.narrow(0, first, share).contiguous().to(device), y.narrow(0, first, share).contiguous().to(device)};
      first += share;
      return b;
    });
    numbers.push_back({step.loss().item(), step.norm().item()});
    if (i == 4) {  // an evaluation between replays; with ZeRO 3 it leaves gathered parameters behind
      NoGrad guard;
      model->eval();
      numbers.push_back((*model)(input.to(device)).to_vector<double>());
      model->train();
    }
  }
  EXPECT_EQ(step.graph().captured(), cuda_graph);
  for (auto& values : values_of(state_dict(*model))) numbers.push_back(std::move(values));
  return numbers;
}

TEST(GraphCuda, TheTrainersStepGivesTheSameNumbers) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  auto expect_same = [](const Maker& make, int zero, bool sync) {
    auto plain = trainer_steps(make, false, zero, sync), graph = trainer_steps(make, true, zero, sync);
    // A sum of two is the same in any order; NCCL may add more of them in another order in a graph.
    if (Group::world().size() <= 2)
      EXPECT_EQ(graph, plain) << "ZeRO " << zero;
    else
      EXPECT_LT(distance(graph, plain), 1e-4) << "ZeRO " << zero;
  };
  for (int zero : {0, 1, 2, 3}) expect_same(small_gpt2(), zero, false);
  expect_same(small_gpt2(true), 3, false);  // recomputation gathers in the middle of backward
  expect_same(small_resnet(), 0, true);
}

// The flight recorder sees the collectives of every replay, in the order in which they were captured.
TEST(GraphCuda, ReplaysAreRecorded) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  Group group = Group::world();
  if (group.size() == 1) GTEST_SKIP() << "a rank alone has no collectives";
  Device device = Device::cuda();
  Tensor t = ones({1000}, f32, device);
  auto step = [&] {
    for (const char* name : {"bucket 0", "bucket 1"}) {
      recorder::Tag tag(name);
      group.all_reduce(t, ReduceOp::max).wait();
    }
  };
  step();
  synchronize(device);
  CudaGraph graph;
  graph.capture(device, step);
  uint64_t before = recorder::signature(group.name()).count;
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(recorder::signature(group.name()).count, before + 6);
  synchronize(device);
  std::vector<recorder::Collective> seen;
  auto collect = [&] {
    seen.clear();
    for (const recorder::Collective& c : recorder::recent())
      if (c.group == group.name() && c.sequence > before && c.graph) seen.push_back(c);
    return seen.size() == 6 && seen.back().finished_ns != 0;
  };
  for (int i = 0; i < 1000 && !collect(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(collect()) << "a thread looks after them";
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(seen[i].tag, i % 2 == 0 ? "bucket 0" : "bucket 1");
    EXPECT_EQ(seen[i].sequence, before + i + 1);
    EXPECT_GT(seen[i].finished_ns, seen[i].enqueued_ns);
    if (i > 0) {
      EXPECT_GE(seen[i].finished_ns, seen[i - 1].finished_ns);
    }
  }
  group.barrier();
}

}  // namespace
}  // namespace xylem
