// SPDX-License-Identifier: Apache-2.0
// The loss of a step is the mean over its counted targets on all ranks, of which one may have none.
#include <bit>

#include "models/loop/evaluate.h"
#include "models/loop/train_step.h"
#include "tests/dist/training.h"

namespace xylem {
namespace {

constexpr int64_t kIgnored = -100;

// Of a batch that every rank takes an equal part of: rank 0 counts all, rank 1 nothing, the others a few.
Tensor ignore_unevenly(const Tensor& target, int world) {
  std::vector<int64_t> labels = target.to_vector<int64_t>();
  const size_t share = labels.size() / size_t(world);
  for (size_t i = 0; i < labels.size(); ++i) {
    const size_t rank = i / share;
    if (rank == 1 || (rank > 1 && i % 3 != 0) || (world == 1 && i % 4 == 1)) labels[i] = kIgnored;
  }
  return from_vector(labels, target.shape());
}

struct Figures {
  std::vector<double> losses, norms;
  std::vector<std::vector<double>> parameters;
};

// `parallel.group` shares every batch; two micro-batches each.
Figures run(const Maker& make, const ParallelOptions& parallel, Device device, DType dtype, double smoothing = 0) {
  const Group& group = parallel.group;
  rng::seed(uint64_t(5 + group.rank()));  // alone all begin like rank 0, whose weights win
  std::unique_ptr<ZooModel> model = make();
  model->to(device);
  model->to(dtype);
  SGD optimizer(FlatParams(*model, {.parallel = parallel}), 0.1, {.momentum = 0.9});
  TrainStep step(*model, optimizer, {.micro_batches = 2, .clip = 0.5, .label_smoothing = smoothing});
  Figures f;
  const int64_t all = shared_batch(), micro = all / group.size() / 2;
  for (int i = 0; i < 4; ++i) {
    auto [input, target] = make_batch(*model, all, i);
    target = ignore_unevenly(target, Group::world().size());
    int64_t first = group.rank() * 2 * micro;
    step.run([&, x = input, y = target] {
      Batch b{x.narrow(0, first, micro).contiguous().to(device), y.narrow(0, first, micro).contiguous().to(device)};
      first += micro;
      return b;
    });
    f.losses.push_back(step.loss().item());
    f.norms.push_back(step.norm().item());
  }
  f.parameters = values_of(model->parameters());
  return f;
}

void expect_same(const Figures& got, const Figures& want, double tolerance) {
  EXPECT_LT(distance(got.losses, want.losses), tolerance);
  EXPECT_LT(distance(got.norms, want.norms), tolerance);
  EXPECT_LT(distance(got.parameters, want.parameters), tolerance);
}

TEST(LossRule, RanksWithUnequalCountsAreOneProcess) {
  for (const Maker& make : {small_mlp(), small_gpt2()})
    for (double smoothing : {0.0, 0.2}) {
      const Figures alone = run(make, {}, {}, f64, smoothing);
      const Group world = Group::world();
      for (int zero : {0, 1, 2, 3}) {
        const Figures together = run(make, on_world(zero), {}, f64, smoothing);
        auto losses = world.gather_integers(std::bit_cast<int64_t>(together.losses.back()));
        for (int64_t l : losses) EXPECT_EQ(l, losses[0]) << "every rank knows the loss of the step";
        SCOPED_TRACE(zero);
        expect_same(together, alone, 1e-6);
      }
    }
}

TEST(LossRule, GradientsThatTravelAsBf16StayNear) {
  ParallelOptions rounded = on_world();
  rounded.reduce_dtype = bf16;
  const Figures alone = run(small_gpt2(), {}, {}, f32), together = run(small_gpt2(), rounded, {}, f32);
  expect_same(together, alone, 2e-2);
}

TEST(LossRuleCuda, RanksWithUnequalCountsAreOneProcess) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  const Figures alone = run(small_gpt2(), {}, Device::cuda(), f32);
  for (int zero : {0, 1, 2, 3}) {
    const Figures together = run(small_gpt2(), on_world(zero), Device::cuda(), f32);
    SCOPED_TRACE(zero);
    expect_same(together, alone, 1e-4);
  }
}

// Label 3 does not count; of the ranks' shares it takes unequal parts.
TEST(Evaluation, IsTheMeanOverCountedTargetsOfAllRanks) {
  const Group world = Group::world();
  rng::seed(7);
  auto model = small_mlp()();
  const Tensor inputs = sample_normal({23, 12}).to(f32);
  std::vector<int64_t> labels = sample_index({23}, 5).to_vector<int64_t>();
  for (size_t i = 0; i < 9; ++i) labels[i] = 3;
  auto set = array_dataset(inputs, from_vector(labels, {23}), 5);
  auto on = [&](const Group& group, int64_t batch) {
    Loader loader(
        set, {.sampler = {
                  .batch = batch, .shuffle = false, .drop_last = false, .rank = group.rank(), .world = group.size()}});
    return evaluate(*model, loader, {.ignore_index = 3, .group = group});
  };
  const Evaluation alone = on(Group(), 23);
  for (int64_t batch : {2, 4, 5}) {
    const Evaluation together = on(world, batch);
    EXPECT_NEAR(together.loss, alone.loss, 1e-6);
    EXPECT_DOUBLE_EQ(*together.accuracy, *alone.accuracy);
  }
}

}  // namespace
}  // namespace xylem
