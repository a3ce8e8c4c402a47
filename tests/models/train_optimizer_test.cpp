// SPDX-License-Identifier: Apache-2.0
#include "models/optim/optimizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/nn/layers.h"
#include "models/optim/ema.h"
#include "models/optim/registry.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

struct Net : Module {
  Linear first{3, 5}, second{5, 2};
  XY_MEMBERS(first, second)
  Tensor operator()(const Tensor& x) const { return second(tanh(first(x))); }
};

struct Weights : Module {
  Tensor w, b;
  explicit Weights(DType dtype = f32)
      : w(parameter(from_vector<float>({1, -2, 3, 0.5}, {2, 2}).to(dtype))),
        b(parameter(from_vector<float>({0.25, -1}, {2}).to(dtype))) {}
  XY_MEMBERS(w, b)
};

// Gives w and b the gradients of `step`, as a backward pass would.
void backward_fixed(const Weights& net, int step, double factor = 1) {
  Tensor gw = from_vector<float>({0.5f, float(step), -1, 0.1f}, {2, 2}), gb = from_vector<float>({-0.3f, 2}, {2});
  (sum(net.w.to(f32) * gw) * factor + sum(net.b.to(f32) * gb) * factor).backward();
}

const double kW[] = {1, -2, 3, 0.5}, kB[] = {0.25, -1};
double grad_w(int i, int step) { return i == 0 ? 0.5 : i == 1 ? step : i == 2 ? -1 : 0.1; }
double grad_b(int i) { return i == 0 ? -0.3 : 2; }

TEST(FlatParams, LaysParametersOutInReverseOrderAndKeepsTheirValues) {
  Net net;
  auto before = net.first.weight.to_vector<float>();
  Tensor handle = net.first.weight;
  FlatParams flat(net);
  ASSERT_EQ(flat.groups().size(), 2u);  // weights decay, biases do not
  for (const FlatGroup& g : flat.groups()) {
    EXPECT_EQ(g.options, default_group({"", g.slots[0].param}));
    for (const FlatSlot& s : g.slots) {
      EXPECT_EQ(s.offset % FlatParams::kAlign, 0);
      EXPECT_EQ(s.param.raw(), g.params.data<float>() + s.offset);
      EXPECT_EQ(s.param.grad().raw(), g.grads.data<float>() + s.offset);
    }
  }
  auto& weights = flat.groups()[flat.groups()[0].slots[0].param.rank() > 1 ? 0 : 1];
  EXPECT_EQ(weights.slots[0].name, "second.weight");
  EXPECT_EQ(weights.slots[1].name, "first.weight");
  EXPECT_EQ(handle.to_vector<float>(), before);
  EXPECT_EQ(handle.raw(), net.first.weight.raw());
  EXPECT_EQ(flat.numel(), net.num_parameters());
}

TEST(FlatParams, FrozenParametersStayOutside) {
  Net net;
  net.first.requires_grad(false);
  FlatParams flat(net);
  EXPECT_EQ(flat.numel(), 12);
  net.requires_grad(false);
  EXPECT_THROW(FlatParams{net}, Error);
}

TEST(FlatParams, UnreachedParametersCountAsZero) {
  Weights net;
  SGD opt(net, 1.0);
  opt.zero_grad();
  backward_fixed(net, 1);
  opt.step();
  auto b = net.b.to_vector<float>();
  opt.zero_grad();
  sum(net.w).backward();  // b is not used: its old gradient must not be applied again
  EXPECT_THAT(opt.params().finish_grads(), ElementsAre("b"));
  opt.step();
  EXPECT_EQ(net.b.to_vector<float>(), b);
  EXPECT_NEAR(net.w.to_vector<float>()[0], kW[0] - 0.5 - 1, 1e-6);
}

TEST(FlatParams, GroupsHaveTheirOwnSettings) {
  Weights net;
  FlatOptions options{.group = [](const NamedTensor& p) {
    return p.name == "w" ? ParamOptions{.lr = 0.5, .weight_decay = 0.4, .beta1 = 0.5} : ParamOptions{.beta2 = 0.9};
  }};
  AdamW opt(FlatParams(net, options), {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.2});
  double w[4], b[2], m[6] = {}, v[6] = {};
  std::copy(kW, kW + 4, w), std::copy(kB, kB + 2, b);
  for (int t = 1; t <= 4; ++t) {
    double base = 0.1 / t;
    opt.set_lr(base);
    opt.zero_grad();
    backward_fixed(net, t);
    opt.step();
    for (int i = 0; i < 6; ++i) {
      bool of_w = i < 4;
      double& p = of_w ? w[i] : b[i - 4];
      double g = of_w ? grad_w(i, t) : grad_b(i - 4), lr = of_w ? base / 2 : base, decay = of_w ? 0.4 : 0.2;
      double beta1 = of_w ? 0.5 : 0.8, beta2 = of_w ? 0.95 : 0.9;
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      double mean = m[i] / (1 - std::pow(beta1, t)), square = v[i] / (1 - std::pow(beta2, t));
      p = p - lr * decay * p - lr * mean / (std::sqrt(square) + 1e-6);
    }
  }
  EXPECT_THAT(net.w.to_vector<float>(), Pointwise(FloatNear(2e-6), w));
  EXPECT_THAT(net.b.to_vector<float>(), Pointwise(FloatNear(2e-6), b));
}

TEST(FlatParams, ARuleThatTheOptimizerDoesNotHaveIsNamed) {
  Weights net;
  FlatOptions options{.group = [](const NamedTensor&) { return ParamOptions{.rule = "newton"}; }};
  EXPECT_THAT(error_of([&] { SGD(FlatParams(net, options), 0.1); }), AllOf(HasSubstr("'b'"), HasSubstr("'newton'")));
}

TEST(Optimizers, AreMadeByName) {
  for (const std::string& name : optimizer_names()) {
    Net net;
    auto before = net.first.weight.to_vector<float>();
    auto opt = optimizer_kind(name).make(net, {}, 0.1, 0, {});
    sum(net(ones({2, 3}))).backward();
    opt->step();
    EXPECT_NE(net.first.weight.to_vector<float>(), before) << name;
    EXPECT_FALSE(optimizer_kind(name).help().empty()) << name;
  }
  EXPECT_THAT(error_of([] { optimizer_kind("adam"); }), HasSubstr("the nearest is 'adamw'"));
  Net net;
  EXPECT_THAT(error_of([&] {
                optimizer_kind("sgd").make(net, {}, 0.1, 0, {{"nesterov", true}, {"momentum", 0.0}});
              }),
              HasSubstr("nesterov needs a momentum"));
}

TEST(AdamW, FollowsThePublishedFormula) {
  Weights net;
  AdamWArgs a{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.2};
  AdamW opt(net, a);
  double w[4], b[2], m[6] = {}, v[6] = {};
  std::copy(kW, kW + 4, w), std::copy(kB, kB + 2, b);
  for (int t = 1; t <= 6; ++t) {
    double lr = 0.1 / t;
    opt.set_lr(lr);
    opt.zero_grad();
    backward_fixed(net, t);
    opt.step();
    for (int i = 0; i < 6; ++i) {
      double& p = i < 4 ? w[i] : b[i - 4];
      double g = i < 4 ? grad_w(i, t) : grad_b(i - 4), decay = i < 4 ? 0.2 : 0;  // biases do not decay
      m[i] = 0.8 * m[i] + 0.2 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      double mean = m[i] / (1 - std::pow(0.8, t)), square = v[i] / (1 - std::pow(0.95, t));
      p = p - lr * decay * p - lr * mean / (std::sqrt(square) + 1e-6);
    }
  }
  EXPECT_THAT(net.w.to_vector<float>(), Pointwise(FloatNear(2e-6), w));
  EXPECT_THAT(net.b.to_vector<float>(), Pointwise(FloatNear(2e-6), b));
}

TEST(SGD, MomentumAndNesterovFollowTheirFormulas) {
  for (bool nesterov : {false, true}) {
    Weights net;
    SGD opt(net, 0.05, {.momentum = 0.9, .weight_decay = 0.1, .nesterov = nesterov});
    double w[4], buffer[4] = {};
    std::copy(kW, kW + 4, w);
    for (int t = 1; t <= 5; ++t) {
      opt.zero_grad();
      backward_fixed(net, t);
      opt.step();
      for (int i = 0; i < 4; ++i) {
        double g = grad_w(i, t) + 0.1 * w[i];
        buffer[i] = 0.9 * buffer[i] + g;
        w[i] -= 0.05 * (nesterov ? g + 0.9 * buffer[i] : buffer[i]);
      }
    }
    EXPECT_THAT(net.w.to_vector<float>(), Pointwise(FloatNear(2e-6), w)) << "nesterov " << nesterov;
  }
}

TEST(SGD, MastersKeepUpdatesThatBf16CannotHold) {
  Weights net(bf16);
  SGD opt(net, 1e-4);
  for (int t = 0; t < 100; ++t) {
    opt.zero_grad();
    backward_fixed(net, 1);
    opt.step();
  }
  EXPECT_EQ(net.w.dtype(), bf16);
  EXPECT_NEAR(net.w.to_vector<float>()[0], kW[0] - 100 * 1e-4 * 0.5, 0.004);  // each step is below half a bf16 ulp
  for (const FlatGroup& g : opt.params().groups()) EXPECT_EQ(g.grads.dtype(), f32);
}

TEST(Clip, MeasuresTheGlobalNormAndScalesTheStep) {
  double norm = std::sqrt(0.25 + 9 + 1 + 0.01 + 0.09 + 4);
  for (double limit : {0.5, 100.0}) {
    Weights net;
    SGD opt(net, 1.0);
    opt.zero_grad();
    backward_fixed(net, 3);
    EXPECT_NEAR(opt.clip(limit).item(), norm, 1e-5);
    opt.step();
    double factor = std::min(1.0, limit / norm);
    EXPECT_NEAR(net.w.to_vector<float>()[1], kW[1] - 3 * factor, 1e-5);
    EXPECT_NEAR(net.b.to_vector<float>()[1], kB[1] - 2 * factor, 1e-5);
  }
}

TEST(LossScaler, SkipsOverflowsAndMovesTheFactor) {
  Weights net;
  AdamW opt(net, {.lr = 0.1});
  LossScaler scaler(Device::cpu(), {.initial = 1024, .growth = 4, .backoff = 0.25, .floor = 64, .interval = 2});
  auto step = [&](double factor) {
    opt.zero_grad();
    Tensor loss = sum(net.w) * factor;
    scaler(loss).backward();
    double norm = opt.clip(0, &scaler).item();
    opt.step();
    return norm;
  };
  EXPECT_NEAR(step(1), 2, 1e-6);  // the norm is that of the unscaled gradient
  EXPECT_NEAR(net.w.to_vector<float>()[0], 0.9 - 0.001, 2e-4);
  EXPECT_EQ(scaler.scale().item(), 1024);

  auto before = state_dict(net)[0].tensor.to_vector<float>();
  auto count = [&] { return opt.state()[0].tensor.item(); };
  EXPECT_EQ(count(), 1);
  EXPECT_FALSE(std::isfinite(step(std::numeric_limits<double>::infinity())));
  EXPECT_EQ(net.w.to_vector<float>(), before);
  EXPECT_EQ(count(), 1);
  EXPECT_EQ(scaler.scale().item(), 256);
  EXPECT_EQ(scaler.skipped().item(), 1);

  step(1);
  EXPECT_EQ(scaler.scale().item(), 256);  // one good step since the overflow
  step(1);
  EXPECT_EQ(scaler.scale().item(), 1024);
  for (int i = 0; i < 5; ++i) step(NAN);
  EXPECT_EQ(scaler.scale().item(), 64);  // not below its floor
  EXPECT_EQ(net.w.to_vector<float>()[0], net.w.to_vector<float>()[0]);
}

TEST(Accumulation, MicroBatchesGiveTheGradientOfTheWholeBatch) {
  Net net;
  Tensor x = sample_uniform({8, 3}).to(f32), y = sample_uniform({8, 2}, -1, 1, 2).to(f32);
  FlatParams flat(net);
  flat.zero_grad();
  mse_loss(net(x), y).backward();
  std::vector<float> whole = flat.grads()[0].to_vector<float>();
  flat.zero_grad();
  for (int64_t i = 0; i < 4; ++i) (mse_loss(net(x.narrow(0, 2 * i, 2)), y.narrow(0, 2 * i, 2)) * 0.25).backward();
  EXPECT_THAT(flat.grads()[0].to_vector<float>(), Pointwise(FloatNear(1e-6), whole));
}

TEST(Ema, AveragesAndLendsItsValuesToTheModule) {
  Weights net;
  SGD opt(net, 1.0);
  Ema ema(net, opt.params(), 0.5);
  double average = kW[0], value = kW[0];
  for (int t = 0; t < 20; ++t) {
    opt.zero_grad();
    sum(net.w).backward();
    opt.step();
    ema.update();
    value -= 1;
    double decay = std::min(0.5, (1.0 + t) / (10.0 + t));
    average = decay * average + (1 - decay) * value;
  }
  {
    Ema::Scope scope(ema);
    EXPECT_NEAR(net.w.to_vector<float>()[0], average, 1e-5);
  }
  EXPECT_NEAR(net.w.to_vector<float>()[0], value, 1e-5);
  EXPECT_EQ(ema.state().size(), 2u);
}

}  // namespace
}  // namespace xylem
