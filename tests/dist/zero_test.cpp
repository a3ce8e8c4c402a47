// SPDX-License-Identifier: Apache-2.0
// ZeRO 1, 2 and 3 against plain data parallel training, bit by bit.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "core/device/allocator.h"
#include "distributed/record/recorder.h"
#include "tests/dist/training.h"

namespace xylem {
namespace {

using testing::HasSubstr;

void expect_equal(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.scales, b.scales);
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_EQ(a.buffers, b.buffers);
  EXPECT_EQ(a.averages, b.averages);
}

void expect_stages_equal(const Maker& make, Job s) {
  DType reduce_dtype = s.parallel.reduce_dtype;
  s.parallel = on_world();
  s.parallel.reduce_dtype = reduce_dtype;
  Trained plain = train(make, s);
  EXPECT_NE(plain.losses.front(), plain.losses.back());
  for (int zero : {1, 2, 3}) {
    SCOPED_TRACE("ZeRO " + std::to_string(zero));
    s.parallel.zero = zero;
    expect_equal(train(make, s), plain);
  }
}

TEST(Zero, EqualsDataParallel) { expect_stages_equal(small_mlp(), {.dtype = f32}); }
TEST(Zero, EqualsDataParallelWithTiedWeights) { expect_stages_equal(small_gpt2(), {.dtype = f32}); }
TEST(Zero, EqualsDataParallelWithRecomputation) { expect_stages_equal(small_gpt2(true), {.dtype = f32}); }
TEST(Zero, EqualsDataParallelWithConvolutions) { expect_stages_equal(small_resnet(), {.dtype = f32, .steps = 3}); }
TEST(Zero, EqualsDataParallelWithAccumulation) {
  expect_stages_equal(small_gpt2(), {.dtype = f32, .micro_batches = 2});
}
TEST(Zero, EqualsDataParallelWithSgd) { expect_stages_equal(small_mlp(), {.dtype = f32, .optimizer = "sgd"}); }
TEST(Zero, EqualsDataParallelWithLion) { expect_stages_equal(small_gpt2(), {.dtype = bf16, .optimizer = "lion"}); }
TEST(Zero, EqualsDataParallelWithMuon) {
  for (DType dtype : {f32, bf16}) expect_stages_equal(small_gpt2(), {.dtype = dtype, .optimizer = "muon"});
  expect_stages_equal(small_resnet(), {.dtype = f32, .steps = 3, .optimizer = "muon"});
  expect_stages_equal(small_mlp(), {.dtype = f16, .steps = 6, .optimizer = "muon", .scale_loss = true});
}
TEST(Zero, EqualsDataParallelWithAverages) { expect_stages_equal(small_gpt2(), {.dtype = f32, .ema = true}); }
TEST(Zero, EqualsDataParallelInBf16WithMasters) { expect_stages_equal(small_gpt2(), {.dtype = bf16, .ema = true}); }
TEST(Zero, EqualsDataParallelWithLossScaling) {
  expect_stages_equal(small_mlp(), {.dtype = f16, .steps = 6, .scale_loss = true});
}

// Tied weights, masters, micro-batches, a scaled loss that overflows now and then, clipping and averages in one job.
TEST(Zero, EqualsDataParallelWithEverythingTogether) {
  Job s{.dtype = f16,
        .steps = 8,
        .micro_batches = 2,
        .clip = 0.1,
        .ema = true,
        .scale_loss = true,
        .initial_scale = 1 << 20,
        .parallel = on_world()};
  Trained plain = train(small_gpt2(), s);
  int64_t overflows = std::count(plain.norms.begin(), plain.norms.end(), INFINITY);
  EXPECT_GE(overflows, 1);
  EXPECT_LE(overflows, s.steps - 3);
  for (bool recompute : {false, true}) expect_stages_equal(small_gpt2(recompute), s);
}

TEST(Zero, EqualsDataParallelWhenSumsTravelInBf16) {
  expect_stages_equal(small_gpt2(), {.dtype = f32, .parallel = {.reduce_dtype = bf16}});
}

struct TwoHeads : Module {
  Linear body{6, 9}, first{9, 3}, second{9, 3};
  XY_MEMBERS(body, first, second)
};

TEST(Zero, UnusedParametersCountAsZeroAtEveryStage) {
  std::vector<std::vector<double>> plain;
  for (int zero : {0, 1, 2, 3}) {
    rng::seed(4);
    TwoHeads model;
    ParallelOptions parallel = on_world(zero);
    parallel.find_unused = true;
    AdamW optimizer(FlatParams(model, {.parallel = parallel}), {.lr = 0.1, .weight_decay = 0});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      Tensor x = full({2, 6}, 0.1 * (parallel.group.rank() + step));
      const Linear& head = step == 1 ? model.second : model.first;
      sum(head(relu(model.body(x)))).backward();
      optimizer.clip(1);
      optimizer.step();
    }
    auto values = values_of(model.parameters());
    if (zero == 0)
      plain = values;
    else
      EXPECT_EQ(values, plain) << "ZeRO " << zero;
  }
}

// A bucket is gathered about once in forward and once in backward, and always in the same order.
TEST(Zero, GathersBucketsAboutOnceAPassInOneOrder) {
  Job s{.dtype = f32, .steps = 4, .parallel = on_world(3)};
  if (s.parallel.group.size() == 1) GTEST_SKIP() << "nothing is gathered";
  size_t buckets = 0;
  recorder::keep_all(true);
  train(small_gpt2(), s, [&](ZooModel&, Optimizer& o) {
    for (const FlatGroup& g : o.params().groups()) buckets += g.buckets.size();
  });
  // Steps end with the norm's all_reduce; gathers of the last ones are alike.
  std::vector<std::vector<std::string>> steps(1);
  for (const auto& c : recorder::take()) {
    if (c.tag.starts_with("parameters"))
      steps.back().push_back(c.tag);
    else if (c.op == "all_reduce" && c.dtype == f64 && c.count == 1 && !steps.back().empty())
      steps.emplace_back();
  }
  recorder::keep_all(false);
  ASSERT_GE(steps.size(), 4u);
  EXPECT_GE(steps[2].size(), buckets);
  EXPECT_LE(steps[2].size(), 3 * buckets) << buckets << " buckets";
  EXPECT_EQ(steps[3], steps[2]);
}

// As after the replay of a graph, which changes the shards and tells nobody.
TEST(Zero, WhatIsForgottenIsGatheredAnew) {
  Linear model(4, 4);
  FlatParams params(model, {.parallel = on_world(3)});
  if (params.parallel().zero() == 0) GTEST_SKIP() << "nothing is gathered";
  auto before = model.weight.to_vector<float>();
  for (const FlatGroup& g : params.groups()) no_grad([&] { g.params.fill_(7); });
  EXPECT_EQ(model.weight.to_vector<float>(), before);
  params.parallel().forget();
  EXPECT_EQ(model.weight.to_vector<float>(), std::vector<float>(16, 7));
}

TEST(Zero, FollowsOneProcess) {
  Trained whole = train(small_gpt2(), {});
  for (int zero : {1, 2, 3}) {
    Trained shared = train(small_gpt2(), {.parallel = on_world(zero)});
    EXPECT_LT(distance(shared.losses, whole.losses), 1e-12);
    EXPECT_LT(distance(shared.parameters, whole.parameters), 1e-11);
  }
}

// One rank's overflow makes all of them skip the step.
TEST(Zero, OverflowOnOneRankSkipsTheStepOnAll) {
  Group world = Group::world();
  for (int zero : {0, 1, 2, 3}) {
    Linear model(4, 4);
    model.to(f16);
    AdamW optimizer(FlatParams(model, {.parallel = on_world(zero)}), {.lr = 0.1});
    LossScaler scaler({}, {.initial = 256});
    auto before = model.weight.to_vector<float>();
    auto step = [&](double factor) {
      optimizer.zero_grad();
      scaler(sum(model(full({1, 4}, factor, f16)).to(f32))).backward();
      optimizer.clip(1, &scaler);
      optimizer.step();
    };
    step(world.rank() == world.size() - 1 ? INFINITY : 1);
    EXPECT_EQ(model.weight.to_vector<float>(), before);
    EXPECT_EQ(scaler.scale().item(), 128);
    step(1);
    EXPECT_NE(model.weight.to_vector<float>(), before);
  }
}

TEST(Zero, MemoryGoesDownStageByStage) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank keeps everything";
  int64_t n = world.size();
  std::vector<ParallelMemory> memory;
  std::vector<int64_t> state, peak;
  for (int zero : {0, 1, 2, 3}) {
    Job s{.dtype = bf16, .steps = 1, .parallel = on_world(zero)};
    train([] { return std::make_unique<zoo::Mlp>(zoo::MlpConfig{.in = 12, .hidden = 64, .layers = 16, .classes = 5}); },
          s,
          [&](ZooModel& model, Optimizer& o) {
            memory.push_back(o.params().parallel().memory());
            state.push_back(o.state_bytes());
            // Another step, with the parameters gathered in an earlier one gone.
            auto [x, y] = make_batch(model, 2, 0);
            allocator({}).reset_peak();
            int64_t before = allocator({}).stats().allocated;
            o.zero_grad();
            model.loss(x.to(bf16), y).backward();
            o.clip(1);
            peak.push_back(allocator({}).stats().peak_allocated - before);
          });
  }
  EXPECT_EQ(state[0], state[1] * n);
  EXPECT_EQ(state[1], state[2]);
  EXPECT_EQ(memory[0].masters, memory[1].masters * n);
  EXPECT_EQ(memory[0].grads, memory[1].grads);
  EXPECT_EQ(memory[1].grads, memory[2].grads * n);
  EXPECT_EQ(memory[1].params, memory[2].params);
  EXPECT_EQ(memory[2].params, memory[3].params * n);
  // What stages 2 and 3 bring for a while is less than the whole.
  EXPECT_LT(peak[2] - peak[1], memory[0].grads / 2);
  EXPECT_LT(peak[3] - peak[2], memory[0].params * 3 / 4);
}

// Every element of every tensor is written by one rank, and what is written can be put together.
TEST(Zero, ShardsMakeUpTheWhole) {
  Group world = Group::world();
  std::map<std::string, std::vector<double>> plain;
  for (int zero : {0, 1, 2, 3})
    train(small_mlp(), {.dtype = f32, .steps = 2, .parallel = on_world(zero)}, [&](ZooModel&, Optimizer& o) {
      std::vector<TensorShard> shards = o.shards();
      for (TensorShard& s : o.params().shards()) shards.push_back(std::move(s));
      std::map<std::string, std::vector<double>> mine;
      std::map<std::string, std::vector<double>> count;
      std::vector<std::string> names;
      if (zero == 0)
        for (const TensorShard& s : shards) mine[s.name].resize(size_t(s.shape.numel()));
      else
        for (const auto& [name, values] : plain) mine[name].resize(values.size());
      for (auto& [name, values] : mine) count[name].resize(values.size());
      for (const TensorShard& s : shards) {
        if (s.owner != world.rank()) continue;
        auto values = s.part.to_vector<double>();
        for (size_t i = 0; i < values.size(); ++i) {
          mine[s.name][size_t(s.begin) + i] = values[i];
          count[s.name][size_t(s.begin) + i] += 1;
        }
      }
      for (auto& [name, values] : mine) {
        Tensor v = from_vector(values, {int64_t(values.size())}), c = from_vector(count[name], v.shape());
        world.all_reduce(v).wait();
        world.all_reduce(c).wait();
        EXPECT_EQ(c.to_vector<double>(), std::vector<double>(values.size(), 1.0)) << name;
        values = v.to_vector<double>();
      }
      if (zero == 0)
        plain = mine;
      else
        EXPECT_EQ(mine, plain);
    });
  EXPECT_EQ(plain.count("exp_avg.layers.0.weight"), 1u);
  EXPECT_EQ(plain.count("layers.0.weight"), 1u);
}

TEST(Zero, LoadedWeightsReachTheShards) {
  Group world = Group::world();
  Linear model(5, 3);
  AdamW optimizer(FlatParams(model, {.parallel = on_world(3)}));
  Linear other(5, 3);
  no_grad([&] {
    other.weight.fill_(0.5);
    other.bias.fill_(-2);
  });
  load_state_dict(model, state_dict(other));
  optimizer.params().refresh();
  optimizer.params().parallel().publish();
  EXPECT_EQ(model.weight.to_vector<double>(), std::vector<double>(15, 0.5));
  EXPECT_EQ(model.bias.to_vector<double>(), std::vector<double>(3, -2.0));
}

TEST(Zero, AnUnknownStageIsAnError) {
  Linear model(5, 3);
  EXPECT_THAT(error_of([&] { FlatParams(model, {.parallel = {.zero = 4}}); }), HasSubstr("not 4"));
}

TEST(ZeroCuda, FollowsDataParallel) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  Job s{.dtype = f32, .device = Device::cuda(), .micro_batches = 2, .ema = true};
  for (const Maker& make : {small_mlp(), small_gpt2(), small_gpt2(true)}) {
    s.optimizer = make()->task() == RecordSpec::Task::language_modelling
                      ? "sgd"
                      : "adamw";  // see DataParallelCuda.FollowsOneProcess
    s.parallel = on_world();
    Trained plain = train(make, s);
    for (int zero : {1, 2, 3}) {
      SCOPED_TRACE("ZeRO " + std::to_string(zero));
      s.parallel.zero = zero;
      Trained t = train(make, s);
      EXPECT_LT(distance(t.losses, plain.losses), 1e-5);
      EXPECT_LT(distance(t.norms, plain.norms), 1e-5);
      EXPECT_LT(distance(t.parameters, plain.parameters), 1e-4);
      EXPECT_LT(distance(t.averages, plain.averages), 1e-4);
    }
  }
}

}  // namespace
}  // namespace xylem
