// SPDX-License-Identifier: Apache-2.0
// The loss of a step is the mean over its counted targets, however it is cut and wherever the ignored ones lie.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "core/random/rng.h"
#include "models/loop/train_step.h"
#include "models/nn/layers.h"
#include "models/optim/optimizers.h"
#include "models/zoo/zoo.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Numbers = std::vector<std::vector<double>>;  // loss and norm of every step, then the parameters

std::unique_ptr<ZooModel> small(const std::string& name) {
  using I = int64_t;
  if (name == "gpt2")
    return zoo::create("gpt2",
                       {{"vocab", I(31)}, {"context", I(6)}, {"layers", I(2)}, {"heads", I(2)}, {"width", I(12)}});
  if (name == "unet") return zoo::create("unet", {{"width", I(4)}, {"depth", I(1)}, {"classes", I(5)}});
  return zoo::create("mlp", {{"in", I(12)}, {"hidden", I(16)}, {"classes", I(5)}});
}

// 12 samples; `counted(i)` says whether target i counts.
Batch make_batch(const ZooModel& model, int step, const std::function<bool(int64_t)>& counted) {
  const bool tokens = model.task() == RecordSpec::Task::language_modelling,
             pixels = model.task() == RecordSpec::Task::segmentation;
  const uint64_t seed = uint64_t(step) + 1;
  const Shape targets = tokens ? Shape{12, 6} : pixels ? Shape{12, 4, 4} : Shape{12};
  Tensor input = tokens   ? sample_index({12, 6}, 31, seed)
                 : pixels ? sample_normal({12, 3, 4, 4}, 1, seed)
                          : sample_normal({12, 12}, 1, seed);
  std::vector<int64_t> labels = sample_index(targets, model.classes(), seed + 100).to_vector<int64_t>();
  for (size_t i = 0; i < labels.size(); ++i)
    if (!counted(int64_t(i))) labels[i] = -100;
  return {input, from_vector(labels, targets)};
}

// The first third counts, of the second a few targets, of the last none.
bool unevenly(int64_t i, int64_t all) { return i < all / 3 || (i < 2 * all / 3 && i % 5 == 2); }

void keep_parameters(const Module& model, Numbers& numbers) {
  for (const NamedTensor& p : model.parameters()) numbers.push_back(p.tensor.to_vector<double>());
}

Numbers train(const std::string& name, DType dtype, const TrainStepOptions& options,
              const std::function<bool(int64_t)>& counted) {
  rng::seed(3);
  auto model = small(name);
  model->to(dtype);
  SGD optimizer(*model, 0.1, {.momentum = 0.9});
  TrainStep step(*model, optimizer, options);
  Numbers numbers;
  for (int i = 0; i < 4; ++i) {
    const Batch whole = make_batch(*model, i, counted);
    int64_t first = 0;
    const int64_t rows = 12 / options.micro_batches;
    step.run([&] {
      Batch part{whole.input.narrow(0, first, rows), whole.target.narrow(0, first, rows)};
      first += rows;
      return part;
    });
    numbers.push_back({step.loss().item(), step.norm().item()});
  }
  keep_parameters(*model, numbers);
  return numbers;
}

void expect_near(const Numbers& got, const Numbers& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    for (size_t j = 0; j < want[i].size(); ++j)
      ASSERT_NEAR(got[i][j], want[i][j], tolerance * (1 + std::abs(want[i][j]))) << i << ", " << j;
}

TEST(LossRule, MicroBatchesWithUnequalCountsAreOneBatch) {
  for (const char* name : {"mlp", "gpt2"})
    for (double smoothing : {0.0, 0.2}) {
      const int64_t all = std::string(name) == "gpt2" ? 72 : 12;
      auto counted = [&](int64_t i) { return unevenly(i, all); };
      const Numbers whole = train(name, f64, {.clip = 0.5, .label_smoothing = smoothing}, counted);
      for (int64_t pieces : {2, 3, 6})
        expect_near(train(name, f64, {.micro_batches = pieces, .clip = 0.5, .label_smoothing = smoothing}, counted),
                    whole, 1e-6);  // loss and norm are f32
    }
}

TEST(LossRule, TheParametersAgreeToTheLastDigits) {
  auto counted = [](int64_t i) { return unevenly(i, 12); };
  Numbers whole = train("mlp", f64, {}, counted), pieces = train("mlp", f64, {.micro_batches = 3}, counted);
  whole.erase(whole.begin(), whole.begin() + 4), pieces.erase(pieces.begin(), pieces.begin() + 4);
  expect_near(pieces, whole, 1e-7);  // the factor that the optimizer multiplies in is f32
}

TEST(LossRule, WithAllTargetsCountedEveryBitIsThatOfAMeanOfMeans) {
  auto all = [](int64_t) { return true; };
  const Numbers got = train("gpt2", f32, {.micro_batches = 3, .clip = 0.5}, all);
  rng::seed(3);
  auto model = small("gpt2");
  SGD optimizer(*model, 0.1, {.momentum = 0.9});
  Numbers want(got.begin(), got.begin() + 4);
  for (int i = 0; i < 4; ++i) {
    const Batch whole = make_batch(*model, i, all);
    optimizer.zero_grad();
    for (int64_t piece = 0; piece < 3; ++piece)
      (model->loss(whole.input.narrow(0, 4 * piece, 4), whole.target.narrow(0, 4 * piece, 4)) * (1.0 / 3)).backward();
    EXPECT_EQ(optimizer.clip(0.5).item(), got[size_t(i)][1]);
    optimizer.step();
  }
  keep_parameters(*model, want);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << i;
}

TEST(LossRule, BatchesOfUnequalSizesAreOneBatch) {
  auto run = [](const std::vector<int64_t>& sizes) {
    rng::seed(3);
    auto model = small("mlp");
    model->to(f64);
    SGD optimizer(*model, 0.1);
    TrainStep step(*model, optimizer, {.micro_batches = int64_t(sizes.size())});
    const Batch whole = make_batch(*model, 0, [](int64_t) { return true; });
    int64_t first = 0;
    size_t next = 0;
    step.run([&] {
      const int64_t rows = sizes[next++];
      Batch part{whole.input.narrow(0, first, rows), whole.target.narrow(0, first, rows)};
      first += rows;
      return part;
    });
    Numbers numbers{{step.loss().item(), step.norm().item()}};
    keep_parameters(*model, numbers);
    return numbers;
  };
  const Numbers whole = run({12});
  expect_near(run({7, 5}), whole, 1e-7);
  expect_near(run({1, 2, 9}), whole, 1e-7);
}

TEST(LossRule, AStepWithoutACountedTargetChangesNothing) {
  for (const char* name : {"mlp", "gpt2", "unet"}) {
    rng::seed(3);
    auto model = small(name);
    SGD optimizer(*model, 0.1, {.momentum = 0.9});
    TrainStep step(*model, optimizer, {.micro_batches = 2, .clip = 1});
    Numbers before, after;
    keep_parameters(*model, before);
    const Batch batch = make_batch(*model, 0, [](int64_t) { return false; });
    step.run([&] { return batch; });
    EXPECT_EQ(step.loss().item(), 0);
    EXPECT_EQ(step.norm().item(), 0);
    keep_parameters(*model, after);
    EXPECT_EQ(after, before) << name;
  }
}

// Few counted targets must neither overflow nor vanish in 16 bits.
TEST(LossRule, HoldsInSixteenBits) {
  auto counted = [](int64_t i) { return unevenly(i, 72); };
  const Numbers exact = train("gpt2", f32, {.clip = 0.5}, counted);
  LossScaler scaler(Device::cpu(), {.initial = 4096});
  const Numbers half = train("gpt2", f16, {.micro_batches = 3, .clip = 0.5, .scaler = &scaler}, counted);
  const Numbers brain = train("gpt2", bf16, {.micro_batches = 3, .clip = 0.5}, counted);
  EXPECT_EQ(scaler.skipped().item(), 0);
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 2; ++j) {
      EXPECT_NEAR(half[i][j], exact[i][j], 0.01 * exact[i][j]) << i << ", " << j;
      EXPECT_NEAR(brain[i][j], exact[i][j], 0.05 * exact[i][j]) << i << ", " << j;
    }
}

// A scale of two changes no bit.
TEST(LossRule, ScalingTheLossChangesNothing) {
  auto counted = [](int64_t i) { return unevenly(i, 72); };
  LossScaler scaler(Device::cpu(), {.initial = 1024});
  EXPECT_EQ(train("gpt2", f32, {.micro_batches = 3, .clip = 0.5, .scaler = &scaler}, counted),
            train("gpt2", f32, {.micro_batches = 3, .clip = 0.5}, counted));
}

struct Net : Module {
  Linear layer{4, 3};
  XY_MEMBERS(layer)
};

TEST(TrainStepOfAnyModule, TakesALossOfItsOwn) {
  rng::seed(1);
  Net net;
  AdamW optimizer(net, {.lr = 0.05});
  Ema average(net, optimizer.params(), 0.9);
  TrainStep step([&](const Batch& b) { return mse_loss(net.layer(b.input), b.target); }, optimizer,
                 {.micro_batches = 2, .clip = 1, .average = &average, .cuda_graph = true});
  EXPECT_FALSE(step.captures());
  EXPECT_EQ(step.no_graph(), "the run is on the CPU");
  const Batch batch{sample_normal({8, 4}).to(f32), sample_normal({8, 3}).to(f32)};
  const double first = mse_loss(net.layer(batch.input), batch.target).item();
  step.run([&] { return batch; });
  EXPECT_NEAR(step.loss().item(), first, 1e-6);
  for (int i = 0; i < 50; ++i) step.run([&] { return batch; });
  EXPECT_LT(step.loss().item(), 0.9 * first);
  EXPECT_EQ(average.updates(), 51);
}

TEST(TrainStepOfAnyModule, TakesBatchesWithoutTargetsFromALoader) {
  rng::seed(1);
  Net net;
  SGD optimizer(net, 0.1);
  TrainStep step([&](const Batch& b) { return mean(net.layer(b.input) * net.layer(b.input)); }, optimizer);
  EXPECT_EQ(step.no_graph(), "it was not asked for");
  step.run([] { return Batch{sample_normal({8, 4}).to(f32)}; });
  EXPECT_GT(step.loss().item(), 0);
  Loader loader(array_dataset(sample_normal({8, 4}).to(f32), sample_index({8}, 3), 3), {.sampler = {.batch = 4}});
  step.run(loader);
  EXPECT_EQ(loader.position(), 1);
}

TEST(TrainStepOfAnyModule, ExplainsALossThatIsNoNumber) {
  Net net;
  SGD optimizer(net, 0.1);
  const Batch batch{sample_normal({8, 4}).to(f32), sample_index({8}, 3)};
  TrainStep rows([&](const Batch& b) { return net.layer(b.input); }, optimizer);
  EXPECT_THAT(error_of([&] { rows.run([&] { return batch; }); }), HasSubstr("must be one number"));
  TrainStep bad([&](const Batch& b) { return mean(log(net.layer(b.input) - 1e6)); }, optimizer, {.debug_nan = true});
  EXPECT_THAT(error_of([&] { bad.run([&] { return batch; }); }),
              AllOf(HasSubstr("the loss of a step is"), HasSubstr("nan"), HasSubstr("log")));
  EXPECT_THAT(error_of([&] { TrainStep none(*small("mlp"), optimizer, {.micro_batches = 0}); }),
              HasSubstr("at least one micro-batch"));
  auto loss = [&](const Batch& b) { return mean(net.layer(b.input)); };
  EXPECT_THAT(error_of([&] { TrainStep none(loss, optimizer, {.label_smoothing = 0.1}); }),
              HasSubstr("a loss of your own smooths its targets itself"));
}

}  // namespace
}  // namespace xylem
