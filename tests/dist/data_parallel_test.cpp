// SPDX-License-Identifier: Apache-2.0
// Data parallel training against one process with the whole batch. Every rank runs every test.
#include <gmock/gmock.h>

#include <bit>

#include "distributed/record/recorder.h"
#include "tests/dist/training.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Job alone(Job s) {
  s.parallel = {};
  return s;
}

void expect_same_curve(const Maker& make, Job job, double tolerance) {
  Trained whole = train(make, alone(job));
  job.parallel = on_world(job.parallel.zero);
  Trained shared = train(make, job);
  EXPECT_LT(distance(shared.losses, whole.losses), tolerance);
  EXPECT_LT(distance(shared.norms, whole.norms), std::max(tolerance, 1e-7));  // norms are f32
  EXPECT_LT(distance(shared.parameters, whole.parameters), tolerance * 10);
  EXPECT_NE(whole.losses.front(), whole.losses.back());
}

TEST(DataParallel, MlpFollowsOneProcessInF64) { expect_same_curve(small_mlp(), {}, 1e-12); }
TEST(DataParallel, MlpFollowsOneProcessInF32) { expect_same_curve(small_mlp(), {.dtype = f32}, 1e-5); }
TEST(DataParallel, Gpt2FollowsOneProcessInF64) { expect_same_curve(small_gpt2(), {}, 1e-12); }
TEST(DataParallel, Gpt2FollowsOneProcessInF32) { expect_same_curve(small_gpt2(), {.dtype = f32}, 1e-5); }
TEST(DataParallel, RecomputedGpt2FollowsOneProcess) { expect_same_curve(small_gpt2(true), {}, 1e-12); }
TEST(DataParallel, AccumulationFollowsOneProcess) { expect_same_curve(small_gpt2(), {.micro_batches = 2}, 1e-12); }
TEST(DataParallel, SgdFollowsOneProcess) { expect_same_curve(small_mlp(), {.optimizer = "sgd"}, 1e-12); }

TEST(DataParallel, MuonFollowsOneProcess) { expect_same_curve(small_gpt2(), {.optimizer = "muon"}, 1e-8); }

TEST(DataParallel, RanksAgreeBitwise) {
  Job s{.dtype = f32, .parallel = on_world()};
  Trained t = train(small_gpt2(), s);
  double sum = 0;
  for (const auto& p : t.parameters)
    for (double v : p) sum += v;
  auto all = s.parallel.group.gather_integers(std::bit_cast<int64_t>(sum));
  for (int64_t other : all) EXPECT_EQ(other, all[0]);
}

TEST(DataParallel, SumsInBf16WhenAsked) {
  Job s{.dtype = f32, .parallel = on_world()};
  if (s.parallel.group.size() == 1) GTEST_SKIP() << "nothing is reduced";
  Trained full = train(small_mlp(), s);
  s.parallel.reduce_dtype = bf16;
  recorder::keep_all(true);
  Trained rounded = train(small_mlp(), s);
  bool any = false;
  for (const auto& c : recorder::take())
    if (c.tag.starts_with("bucket")) {
      EXPECT_EQ(c.dtype, bf16);
      any = true;
    }
  recorder::keep_all(false);
  EXPECT_TRUE(any);
  EXPECT_GT(distance(rounded.parameters, full.parameters), 0);
  EXPECT_LT(distance(rounded.losses, full.losses), 0.02);
}

std::vector<std::string> bucket_tags(const std::vector<recorder::Collective>& all) {
  std::vector<std::string> tags;
  for (const auto& c : all)
    if (c.tag.starts_with("bucket")) tags.push_back(c.tag);
  return tags;
}

TEST(DataParallel, ReducesEachBucketOnceAStepInAFixedOrder) {
  Job s{.dtype = f32, .steps = 3, .micro_batches = 2, .parallel = on_world()};
  if (s.parallel.group.size() == 1) GTEST_SKIP() << "nothing is reduced";
  size_t buckets = 0;
  recorder::keep_all(true);
  train(small_gpt2(), s, [&](ZooModel&, Optimizer& o) {
    for (const FlatGroup& g : o.params().groups()) buckets += g.buckets.size();
  });
  std::vector<std::string> tags = bucket_tags(recorder::take()), expected;
  recorder::keep_all(false);
  for (size_t i = 0; i < buckets; ++i) expected.push_back("bucket " + std::to_string(i));
  EXPECT_GT(buckets, 3u);
  ASSERT_EQ(tags.size(), 3 * buckets);
  auto step = [&](size_t i) { return std::vector(tags.begin() + i * buckets, tags.begin() + (i + 1) * buckets); };
  EXPECT_EQ(step(0), expected);
  EXPECT_THAT(step(1), testing::UnorderedElementsAreArray(expected));
  EXPECT_EQ(step(2), step(1));
}

// Layers that run in the opposite order of their registration.
struct Backwards : Module {
  Linear last{8, 4}, middle{8, 8}, first{8, 8};
  XY_MEMBERS(last, middle, first)
  Tensor operator()(const Tensor& x) const { return last(relu(middle(relu(first(x))))); }
};

TEST(DataParallel, LaunchesInTheOrderOfTheFirstStep) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "nothing is reduced";
  Backwards model;
  AdamW optimizer(FlatParams(model, {.group = [](const NamedTensor&) { return ParamOptions(); },
                                     .parallel = {.group = world, .bucket_mb = 1e-4, .first_bucket_mb = 1e-4}}));
  std::vector<std::vector<std::string>> steps;
  recorder::keep_all(true);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    sum(model(ones({2, 8}))).backward();
    optimizer.clip(1);
    optimizer.step();
    steps.push_back(bucket_tags(recorder::take()));
  }
  recorder::keep_all(false);
  // Every parameter has a bucket of its own; that of first.bias, whose gradient comes last, is expected first.
  ASSERT_GE(steps[0].size(), 3u);
  EXPECT_EQ(steps[0].front(), "bucket 0");
  EXPECT_EQ(steps[1].size(), steps[0].size());
  EXPECT_NE(steps[1].front(), "bucket 0");
}

TEST(DataParallel, DifferentParametersAreNamed) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  zoo::Mlp model({.in = 4, .hidden = world.rank() == 1 ? 7 : 6, .layers = 1, .classes = 3});
  EXPECT_THAT(error_of([&] { FlatParams(model, {.parallel = {.group = world}}); }),
              AllOf(HasSubstr("do not have the same parameters"), HasSubstr("'layers.0.bias' f32[6]"),
                    HasSubstr("'layers.0.bias' f32[7]"), HasSubstr("on rank 1")));
}

struct TwoHeads : Module {
  Linear first{3, 3}, second{3, 3};
  XY_MEMBERS(first, second)
};

TEST(DataParallel, UnusedParametersAreNamedOrCountAsZero) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "alone, unused parameters count as zero";
  for (bool find_unused : {false, true}) {
    TwoHeads model;
    AdamW optimizer(FlatParams(model, {.parallel = {.group = world, .find_unused = find_unused}}));
    optimizer.zero_grad();
    Tensor x = ones({2, 3});
    // Every rank leaves one head out, though not the same one.
    (world.rank() == 0 ? sum(model.first(x)) : sum(model.second(x))).backward();
    if (!find_unused) {
      EXPECT_THAT(error_of([&] { optimizer.clip(0); }),
                  HasSubstr(world.rank() == 0 ? "'second.bias', 'second.weight'" : "'first.bias', 'first.weight'"));
      continue;
    }
    optimizer.clip(0);
    double n = world.size();
    for (double g : model.first.bias.grad().to_vector<double>()) EXPECT_FLOAT_EQ(float(g), float(2 / n));
    for (double g : model.second.bias.grad().to_vector<double>()) EXPECT_FLOAT_EQ(float(g), float(2 * (n - 1) / n));
  }
}

TEST(DataParallel, ASecondSynchronisedPassIsAnError) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "nothing is synchronised";
  Linear model(3, 2);
  AdamW optimizer(FlatParams(model, {.parallel = {.group = world}}));
  optimizer.zero_grad();
  sum(model(ones({1, 3}))).backward();
  EXPECT_THAT(error_of([&] { sum(model(ones({1, 3}))).backward(); }), HasSubstr("sync_when"));
  optimizer.zero_grad();
}

TEST(DataParallel, RunningStatisticsStartFromRankZero) {
  Group world = Group::world();
  BatchNorm2d norm(3);
  norm.running_mean.tensor.fill_(world.rank() + 1);
  FlatParams params(norm, {.parallel = {.group = world}});
  EXPECT_EQ(norm.running_mean.tensor.to_vector<double>(), std::vector<double>(3, 1.0));
  norm.running_mean.tensor.fill_(world.rank() + 5);
  params.parallel().broadcast_state();
  EXPECT_EQ(norm.running_mean.tensor.to_vector<double>(), std::vector<double>(3, 5.0));
}

// Plain descent for GPT-2: the gradients of its key biases are nothing but rounding, which Adam would blow up.
TEST(DataParallelCuda, FollowsOneProcess) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  expect_same_curve(small_mlp(), {.dtype = f32, .device = Device::cuda(), .micro_batches = 2}, 1e-5);
  expect_same_curve(small_gpt2(), {.dtype = f32, .device = Device::cuda(), .micro_batches = 2, .optimizer = "sgd"},
                    1e-5);
}

}  // namespace
}  // namespace xylem
