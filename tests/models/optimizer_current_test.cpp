// SPDX-License-Identifier: Apache-2.0
// What an optimizer keeps beside the parameters (buffers, masters, averages, a loss scale) follows them, or says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "models/nn/layers.h"
#include "models/optim/ema.h"
#include "models/optim/optimizers.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct One : Module {
  Tensor w;
  explicit One(double value = 1, DType dtype = f32) : w(parameter(full({1, 1}, value, dtype))) {}
  XY_MEMBERS(w)
  double value() const { return w.item(); }
};
struct Two : Module {
  One x, y;
  XY_MEMBERS(x, y)
};

void step(Optimizer& opt, const Tensor& loss) {
  opt.zero_grad();
  loss.backward();
  opt.step();
}

TEST(Masters, FollowWeightsThatAreLoaded) {
  One m(1, bf16);
  SGD opt(m, 0.5);
  load_state_dict(m, {{"w", full({1, 1}, 10)}});
  step(opt, sum(m.w.to(f32)));
  EXPECT_EQ(m.value(), 9.5);
  no_grad([&] { m.w.fill_(4); });
  step(opt, sum(m.w.to(f32)));
  EXPECT_EQ(m.value(), 3.5);
  no_grad([&] { m.w.add_(ones({1, 1}, bf16)); });
  step(opt, sum(m.w.to(f32)));
  EXPECT_EQ(m.value(), 4);
}

TEST(Masters, OfUnchangedParametersKeepTheirDigits) {
  Linear layer(1, 2, false);
  no_grad([&] { layer.weight.fill_(1); });
  layer.to(bf16);
  SGD opt(layer, 1e-3);
  auto master = [&] { return opt.state()[1].tensor.to_vector<float>(); };
  step(opt, sum(layer.weight.to(f32)));
  EXPECT_FLOAT_EQ(master()[0], 0.999f);  // which bf16 rounds to 1
  no_grad([&] { layer.weight[1].fill_(3); });
  step(opt, sum(layer.weight.to(f32)));
  EXPECT_FLOAT_EQ(master()[0], 0.998f);
  EXPECT_FLOAT_EQ(master()[1], 2.999f);
}

TEST(Masters, AreCurrentInStateAndAverages) {
  One m(1, bf16);
  SGD opt(m, 0.5);
  load_state_dict(m, {{"w", full({1, 1}, 10)}});
  EXPECT_EQ(opt.state()[1].tensor.item(), 10);
  no_grad([&] { m.w.fill_(6); });
  Ema ema(m, opt.params(), 0.5);
  EXPECT_EQ(ema.state()[0].tensor.item(), 6);
  no_grad([&] { m.w.fill_(16); });
  ema.update();  // the first update's decay is 0.1
  EXPECT_FLOAT_EQ(float(ema.state()[0].tensor.item()), 15);
}

TEST(StaleOptimizer, AnotherOptimizerOverTheModuleIsNamed) {
  One m;
  SGD first(m, 1.0);
  Ema ema(m, first.params(), 0.9);
  { AdamW second(m, {}); }
  sum(m.w).backward();
  EXPECT_THAT(error_of([&] { first.step(); }), AllOf(HasSubstr("'w'"), HasSubstr("another optimizer has taken over")));
  EXPECT_THROW(first.clip(1), Error);
  EXPECT_THROW(first.state(), Error);
  EXPECT_THROW(ema.update(), Error);
  EXPECT_EQ(m.value(), 1);
}

TEST(StaleOptimizer, ACastOfTheModuleIsNamed) {
  One m;
  SGD opt(m, 1.0);
  m.to(bf16);
  sum(m.w).backward();
  EXPECT_THAT(error_of([&] { opt.step(); }),
              AllOf(HasSubstr("'w'"), HasSubstr("f32"), HasSubstr("is bf16"), HasSubstr("after module.to(...)")));
}

TEST(StaleOptimizer, GradientsFromOutsideAreTaken) {
  One m;
  SGD opt(m, 1.0);
  m.w.set_grad(full({1, 1}, 0.25));
  opt.step();
  EXPECT_EQ(m.value(), 0.75);
  opt.zero_grad();
  sum(m.w * m.w).backward({}, false, true);  // with create_graph the gradient is a new tensor
  opt.step();
  EXPECT_EQ(m.value(), -0.75);
}

TEST(Frozen, ParametersAndTheirStateStayAsTheyAre) {
  Two m;
  AdamW opt(m, {.lr = 0.1, .weight_decay = 0.5});
  auto moments = [&] {
    std::vector<double> all;
    for (const NamedTensor& t : opt.state())
      if (t.name.ends_with("y.w")) all.push_back(t.tensor.item());
    return all;
  };
  step(opt, sum(m.x.w * m.y.w));
  double y = m.y.value();
  auto before = moments();
  m.y.requires_grad(false);
  for (int i = 0; i < 3; ++i) {
    double x = m.x.value();
    step(opt, sum(m.x.w * m.y.w));
    EXPECT_EQ(m.y.value(), y);
    EXPECT_LT(m.x.value(), x);
  }
  EXPECT_EQ(moments(), before);
  m.y.requires_grad(true);
  step(opt, sum(m.x.w * m.y.w));
  EXPECT_LT(m.y.value(), y);
}

TEST(Frozen, MomentumDoesNotMoveThem) {
  One m;
  SGD opt(m, 0.1, {.momentum = 0.9});
  step(opt, sum(m.w));
  double w = m.value();
  m.requires_grad(false);
  EXPECT_EQ(opt.clip(1).item(), 0);
  opt.step();
  EXPECT_EQ(m.value(), w);
}

TEST(Frozen, AveragesHoldTheirValues) {
  Two m;
  SGD opt(m, 0.1);
  m.y.requires_grad(false);
  Ema ema(m, opt.params(), 0.5);
  step(opt, sum(m.x.w));
  ema.update();
  for (const NamedTensor& t : ema.state())
    if (t.name == "y.w") {
      EXPECT_EQ(t.tensor.item(), 1);
    }
}

TEST(Frozen, GradientsOfBeforeAreNotPartOfTheNorm) {
  Two m;
  SGD opt(m, 0.1);
  sum(m.x.w * 3.0 + m.y.w * 4.0).backward();
  EXPECT_EQ(opt.clip(0).item(), 5);
  m.y.requires_grad(false);
  EXPECT_EQ(opt.clip(0).item(), 3);
}

// Two optimizers that share a scaler, both clipped after the backward pass of a common loss.
struct Pair {
  One d, g;
  SGD of_d{d, 1.0}, of_g{g, 1.0};
  LossScaler scaler{Device::cpu(), {.initial = 8, .interval = 1}};
  void step(double d_factor = 1, double g_factor = 1) {
    of_d.zero_grad(), of_g.zero_grad();
    scaler(sum(d.w) * d_factor + sum(g.w) * g_factor).backward();
    of_d.clip(0, &scaler), of_g.clip(0, &scaler);
    of_d.step(), of_g.step();
  }
};

TEST(LossScaler, MovesOnceAPassHoweverManyOptimizersItServes) {
  Pair p;
  p.step();
  EXPECT_EQ(p.d.value(), 0);
  EXPECT_EQ(p.g.value(), 0);
  EXPECT_EQ(p.scaler.scale().item(), 16);
  p.step();
  EXPECT_EQ(p.g.value(), -1);
  EXPECT_EQ(p.scaler.scale().item(), 32);
}

TEST(LossScaler, AnOverflowInOneOptimizerSkipsThePassOfAll) {
  const double inf = std::numeric_limits<double>::infinity();
  for (bool first : {true, false}) {
    Pair p;
    p.step(first ? inf : 1, first ? 1 : inf);
    EXPECT_EQ(p.d.value(), 1);
    EXPECT_EQ(p.g.value(), 1);
    EXPECT_EQ(p.scaler.scale().item(), 4);
    EXPECT_EQ(p.scaler.skipped().item(), 1);
    p.step();
    EXPECT_EQ(p.d.value(), 0);
    EXPECT_EQ(p.g.value(), 0);
  }
}

// A pass of each optimizer in turn: what was decided in one survives the other.
TEST(LossScaler, ASkipHoldsUntilItsOptimizerSteps) {
  Pair p;
  p.scaler(sum(p.d.w) * std::numeric_limits<double>::infinity()).backward();
  p.of_d.clip(0, &p.scaler);
  p.scaler(sum(p.g.w)).backward();
  p.of_g.clip(0, &p.scaler);
  p.of_d.step(), p.of_g.step();
  EXPECT_EQ(p.d.value(), 1);
  EXPECT_EQ(p.g.value(), 0);
  EXPECT_EQ(p.scaler.scale().item(), 8);
}

TEST(LossScaler, SeveralLossesOfAPassHaveOneFactor) {
  One m;
  SGD opt(m, 1.0);
  LossScaler scaler(Device::cpu(), {.initial = 8, .interval = 1});
  for (int i = 0; i < 3; ++i) {
    opt.zero_grad();
    scaler(sum(m.w) * 0.5).backward();
    scaler(sum(m.w) * 0.5).backward();
    EXPECT_EQ(opt.clip(0, &scaler).item(), 1);
    opt.step();
  }
  EXPECT_EQ(m.value(), -2);
  EXPECT_EQ(scaler.scale().item(), 64);
}

}  // namespace
}  // namespace xylem
