// SPDX-License-Identifier: Apache-2.0
// What changes between the steps of an optimizer whose state is shared among ranks: loaded weights, frozen parameters,
// a second optimizer. At every ZeRO stage as in plain data parallel training, bit by bit.
#include <gmock/gmock.h>

#include "tests/dist/training.h"

namespace xylem {
namespace {

using testing::HasSubstr;

struct Net : Module {
  Linear first{6, 9}, second{9, 7}, third{7, 3};
  XY_MEMBERS(first, second, third)
  Tensor operator()(const Tensor& x) const { return third(tanh(second(tanh(first(x))))); }
};

void step(const Net& net, Optimizer& opt, int number, LossScaler* scaler = nullptr) {
  opt.zero_grad();
  Tensor x = full({2, 6}, 0.1 * (Group::world().rank() + number + 1), net.first.weight.dtype());
  Tensor loss = sum(net(x).to(f32));
  (scaler ? (*scaler)(loss) : loss).backward();
  opt.clip(1, scaler);
  opt.step();
}

// Runs `job` at every stage; its results must be those of stage 0.
void expect_same_at_every_stage(const std::function<std::vector<std::vector<double>>(int zero)>& job) {
  auto plain = job(0);
  for (int zero : {1, 2, 3}) EXPECT_EQ(job(zero), plain) << "ZeRO " << zero;
}

TEST(OptimizerRanks, LoadedWeightsReachMastersAndShards) {
  expect_same_at_every_stage([](int zero) {
    rng::seed(1);
    Net net, other;
    net.to(bf16);
    SGD opt(FlatParams(net, {.parallel = on_world(zero)}), 0.125, {.momentum = 0.5});
    step(net, opt, 0);
    load_state_dict(net, state_dict(other));
    auto loaded = net.second.weight.to_vector<double>();
    step(net, opt, 1);
    auto moved = net.second.weight.to_vector<double>();
    EXPECT_NE(moved, loaded);
    for (size_t i = 0; i < moved.size(); ++i) EXPECT_NEAR(moved[i], loaded[i], 0.3);
    return values_of(net.parameters());
  });
}

TEST(OptimizerRanks, WeightsLoadedIntoWideParametersStay) {
  expect_same_at_every_stage([](int zero) {
    rng::seed(1);
    Net net, other;
    SGD opt(FlatParams(net, {.parallel = on_world(zero)}), 0.0);
    step(net, opt, 0);
    load_state_dict(net, state_dict(other));
    step(net, opt, 1);
    EXPECT_EQ(values_of(net.parameters()), values_of(other.parameters()));
    return values_of(net.parameters());
  });
}

TEST(OptimizerRanks, FrozenParametersRestAndGoOn) {
  for (DType dtype : {f32, bf16})
    expect_same_at_every_stage([dtype](int zero) {
      rng::seed(2);
      Net net;
      net.to(dtype);
      AdamW opt(FlatParams(net, {.parallel = on_world(zero)}), {.lr = 0.02, .weight_decay = 0.5});
      step(net, opt, 0);
      net.second.requires_grad(false);
      net.first.bias.set_requires_grad(false);
      auto resting = values_of(net.second.parameters());
      auto moving = net.first.weight.to_vector<double>();
      for (int i = 1; i < 4; ++i) step(net, opt, i);
      EXPECT_EQ(values_of(net.second.parameters()), resting);
      EXPECT_NE(net.first.weight.to_vector<double>(), moving);
      // Between zero_grad() and the backward pass is early enough.
      opt.zero_grad();
      net.requires_grad(true);
      sum(net(full({2, 6}, 0.3, dtype)).to(f32)).backward();
      opt.step();
      EXPECT_NE(values_of(net.second.parameters()), resting);
      return values_of(net.parameters());
    });
}

TEST(OptimizerRanks, MatricesOfMuonRestAndGoOn) {
  expect_same_at_every_stage([](int zero) {
    rng::seed(2);
    Net net;
    Muon opt(net, {.lr = 0.02}, {.parallel = on_world(zero)});
    step(net, opt, 0);
    net.first.requires_grad(false);
    auto resting = values_of(net.first.parameters()), moving = values_of(net.second.parameters());
    for (int i = 1; i < 3; ++i) step(net, opt, i);
    EXPECT_EQ(values_of(net.first.parameters()), resting);
    EXPECT_NE(values_of(net.second.parameters()), moving);
    net.first.requires_grad(true);
    step(net, opt, 3);
    EXPECT_NE(values_of(net.first.parameters()), resting);
    return values_of(net.parameters());
  });
}

TEST(OptimizerRanks, FreezingFollowsOneProcess) {
  auto job = [](const ParallelOptions& parallel) {
    rng::seed(3);
    Net net;
    net.to(f64);
    AdamW opt(FlatParams(net, {.parallel = parallel}), {.lr = 0.02});
    for (int i = 0; i < 6; ++i) {
      net.third.requires_grad(i % 3 != 1);
      opt.zero_grad();
      sum(net(full({2, 6}, 0.1 * (i + 1), f64))).backward();
      opt.clip(0.5);
      opt.step();
    }
    return values_of(net.parameters());
  };
  for (int zero : {0, 1, 2, 3}) EXPECT_LT(distance(job(on_world(zero)), job({})), 1e-7) << "ZeRO " << zero;
}

TEST(OptimizerRanks, AStaleOptimizerSaysSo) {
  for (int zero : {0, 1, 2, 3}) {
    Net net;
    SGD first(FlatParams(net, {.parallel = on_world(zero)}), 0.1);
    SGD second(FlatParams(net, {.parallel = on_world(zero)}), 0.1);
    second.zero_grad();
    sum(net(ones({2, 6}))).backward();
    second.step();
    EXPECT_THAT(error_of([&] { first.step(); }), HasSubstr("another optimizer has taken over")) << "ZeRO " << zero;
  }
}

// Losses of two networks in one pass; an overflow of one rank in one of them skips the pass of both on all ranks.
TEST(OptimizerRanks, AScalerServesTwoOptimizers) {
  expect_same_at_every_stage([](int zero) {
    rng::seed(4);
    Net d, g;
    SGD of_d(FlatParams(d, {.parallel = on_world(zero)}), 0.1), of_g(FlatParams(g, {.parallel = on_world(zero)}), 0.1);
    LossScaler scaler({}, {.initial = 8, .interval = 1});
    std::vector<double> scales;
    for (int i = 0; i < 3; ++i) {
      bool overflows = i == 1 && Group::world().rank() == Group::world().size() - 1;
      auto before = values_of(d.parameters());
      of_d.zero_grad(), of_g.zero_grad();
      scaler(sum(d(ones({2, 6}))) + sum(g(ones({2, 6}))) * (overflows ? INFINITY : 1)).backward();
      of_d.clip(1, &scaler), of_g.clip(1, &scaler);
      of_d.step(), of_g.step();
      EXPECT_EQ(values_of(d.parameters()) == before, i == 1);
      scales.push_back(scaler.scale().item());
    }
    EXPECT_EQ(scales, (std::vector<double>{16, 8, 16}));
    return values_of(g.parameters());
  });
}

}  // namespace
}  // namespace xylem
