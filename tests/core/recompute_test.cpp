// SPDX-License-Identifier: Apache-2.0
// Activation recomputation gives what the same function gives when its intermediates are kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/random/rng.h"
#include "ops/ops.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensor leaf(std::vector<double> values) {
  Shape shape{int64_t(values.size())};
  return from_vector(values, shape).set_requires_grad();
}
std::vector<double> values(const Tensor& t) { return t.to_vector<double>(); }

// Scales what it is given by weights that it finds elsewhere, and counts its runs.
struct Block {
  Tensor weight;
  int runs = 0;
  Tensor operator()(const Tensors& in) {
    ++runs;
    return exp(in[0] * weight);
  }
};
Tensor through(Block& block, const Tensor& x) {
  return recompute([&block](const Tensors& in) { return block(in); }, {x});
}

TEST(Recompute, GradientsAndRandomNumbersAreThoseOfTheFunctionItself) {
  auto run = [](bool again) {
    rng::seed(5);
    Tensor x = sample_normal({64}).set_requires_grad(), w = sample_normal({64}, 1, 2).set_requires_grad();
    auto block = [&](const Tensors& in) { return dropout(exp(in[0] * w), 0.5); };
    Tensor y = again ? recompute(block, {x}) : block({x});
    Tensor noise = rand({64}, f64);
    sum(y * y * noise).backward();
    return std::tuple(values(y), values(x.grad()), values(w.grad()));
  };
  EXPECT_EQ(run(false), run(true));
}

TEST(Recompute, FrozenInputsStillGiveTheParametersInsideTheirGradient) {
  Block block{leaf({1, 2})};
  sum(through(block, from_vector<double>({0, 0}, {2}) + 1.0)).backward();
  EXPECT_THAT(values(block.weight.grad()), ElementsAre(std::exp(1.0), std::exp(2.0)));
}

TEST(Recompute, FrozenBlocksBelowTrainableOnesAreRunOnce) {
  Block frozen{from_vector<double>({1, 2}, {2})}, trained{leaf({3, 4})};
  Tensor h = through(frozen, from_vector<double>({0.5, 0.25}, {2}));
  EXPECT_FALSE(h.requires_grad());
  sum(through(trained, h)).backward();
  EXPECT_TRUE(trained.weight.grad().defined());
  EXPECT_EQ(frozen.runs, 1);
  EXPECT_EQ(trained.runs, 2);
}

TEST(Recompute, WhatNeedsNoGradientAnywhereGivesAResultThatNeedsNone) {
  Block frozen{from_vector<double>({1, 2}, {2})};
  Tensor y = through(frozen, from_vector<double>({1, 1}, {2}));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_THAT(error_of([&] { sum(y).backward(); }), HasSubstr("does not depend on anything"));
}

TEST(Recompute, GradReturnsGradientsOfParametersInsideAndLeavesTheirsAlone) {
  Block block{leaf({1, 2})};
  Tensor x = leaf({1, 1});
  Tensor y = sum(through(block, x) * 3.0);
  Tensors g = grad({y}, {block.weight, x}, {}, true);
  ASSERT_TRUE(g[0].defined());
  EXPECT_THAT(values(g[0]), ElementsAre(3 * std::exp(1.0), 3 * std::exp(2.0)));
  EXPECT_THAT(values(g[1]), ElementsAre(3 * std::exp(1.0), 6 * std::exp(2.0)));
  EXPECT_FALSE(block.weight.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  y.backward();
  EXPECT_EQ(values(block.weight.grad()), values(g[0]));
}

TEST(Recompute, GradOfTheInputAloneLeavesTheParametersAlone) {
  Block block{leaf({1, 2})};
  Tensor x = leaf({1, 1});
  Tensor g = grad({sum(through(block, x))}, {x})[0];
  EXPECT_THAT(values(g), ElementsAre(std::exp(1.0), 2 * std::exp(2.0)));
  EXPECT_FALSE(block.weight.grad().defined());
}

TEST(Recompute, ParametersUsedByTwoBlocksAreReadyOnceWithTheWholeGradient) {
  auto run = [](bool again) {
    Block block{leaf({0.1, 0.2})};
    std::vector<std::vector<double>> seen;
    block.weight.register_grad_ready([&](const Tensor& l) { seen.push_back(values(l.grad())); });
    Tensor x = leaf({0.5, 0.25});
    Tensor h = again ? through(block, x) : block({x});
    Tensor y = again ? through(block, h) : block({h});
    sum(y * block.weight).backward();
    EXPECT_EQ(seen.size(), 1u);
    return std::pair(seen, values(x.grad()));
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Recompute, HooksRunOnceOnTheWholeGradient) {
  Block block{leaf({1, 2})};
  Tensor x = leaf({1, 1}), h = x * 1.0;
  int of_weight = 0, of_input = 0;
  block.weight.register_hook([&](const Tensor& g) {
    ++of_weight;
    return g * 10.0;
  });
  h.register_hook([&](const Tensor& g) {
    ++of_input;
    return g * 100.0;
  });
  sum(through(block, h)).backward();
  EXPECT_EQ(of_weight, 1);
  EXPECT_EQ(of_input, 1);
  EXPECT_THAT(values(block.weight.grad()), ElementsAre(10 * std::exp(1.0), 10 * std::exp(2.0)));
  EXPECT_THAT(values(x.grad()), ElementsAre(100 * std::exp(1.0), 200 * std::exp(2.0)));
}

TEST(Recompute, ResultsOfOtherOperationsMayBeUsedInsideAndOutside) {
  auto run = [](bool again) {
    Tensor x = leaf({1, 2}), w = leaf({3, 4});
    Tensor shared = exp(w * 0.1);  // reached by the closure, not as an argument
    auto fn = [&](const Tensors& in) { return in[0] * shared * x; };
    Tensor y = again ? recompute(fn, {x}) : fn({x});
    sum(y * shared).backward();
    return std::pair(values(x.grad()), values(w.grad()));
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Recompute, AnInputMayBeGivenTwice) {
  Tensor x = leaf({2});
  auto fn = [](const Tensors& in) { return in[0] * in[0] * in[1]; };
  recompute(fn, {x, x}).backward();
  EXPECT_EQ(x.grad().item(), 12);
  Tensor h = x * 1.0;
  EXPECT_EQ(grad({recompute(fn, {h, h})}, {x})[0].item(), 12);
}

TEST(Recompute, AFunctionMayHandAParameterOrItsInputThrough) {
  Tensor w = leaf({1, 2}), x = leaf({3, 4});
  sum(recompute([&](const Tensors&) { return w; }, {x}) * 2.0).backward();
  EXPECT_THAT(values(w.grad()), ElementsAre(2, 2));
  EXPECT_FALSE(x.grad().defined());
  sum(recompute([](const Tensors& in) { return in[0]; }, {x}) * 3.0).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(3, 3));
}

TEST(Recompute, Nests) {
  auto run = [](bool again) {
    Block inner{leaf({0.3, 0.2})};
    Tensor outer = leaf({0.7, 0.5}), x = leaf({0.1, 0.2});
    auto fn = [&](const Tensors& in) {
      return (again ? through(inner, in[0] * outer) : inner({in[0] * outer})) * outer;
    };
    Tensor y = sum(again ? recompute(fn, {x}) : fn({x}));
    Tensors g = grad({y}, {inner.weight, outer, x}, {}, true);
    EXPECT_FALSE(inner.weight.grad().defined());
    y.backward();
    for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(values(g[i]), values(Tensors{inner.weight, outer, x}[i].grad()));
    return std::tuple(values(g[0]), values(g[1]), values(g[2]));
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Recompute, NothingIsRecordedOrRunAgainWithoutGradients) {
  Block block{leaf({1, 2})};
  Tensor y = no_grad([&] { return through(block, leaf({1, 1})); });
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(block.runs, 1);
}

TEST(Recompute, WhatTheFunctionReadsWithoutGradientsGetsNone) {
  Tensor x = leaf({1, 2}), w = leaf({3, 4}), seen = leaf({5, 6});
  auto fn = [&](const Tensors& in) {
    Tensor scale = no_grad([&] { return seen * 2.0; });
    return in[0] * w * scale;
  };
  Tensor y = sum(recompute(fn, {x}));
  y.backward();
  EXPECT_FALSE(seen.grad().defined());
  EXPECT_THAT(values(w.grad()), ElementsAre(10, 24));
}

TEST(Recompute, GradientsGoStraightIntoGivenBuffersAndAccumulate) {
  Tensor w = sample_normal({3, 4}).to(f32).set_requires_grad(), x = sample_normal({2, 4}, 1, 2).to(f32);
  Tensor buffer = full({3, 4}, 7, f32);
  w.set_grad(buffer);
  w.zero_grad();
  auto fn = [&](const Tensors& in) { return linear(in[0], w); };
  sum(recompute(fn, {x})).backward();
  auto once = values(buffer);
  EXPECT_EQ(w.grad().raw(), buffer.raw());
  sum(recompute(fn, {x})).backward();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(values(buffer)[i], 2 * once[i], 1e-5);
  Tensor v = w.detach().clone().set_requires_grad();
  sum(linear(x, v)).backward();
  EXPECT_EQ(values(v.grad()), once);
}

TEST(Recompute, TheGraphMayBeWalkedTwice) {
  Block block{leaf({1, 2})};
  Tensor y = sum(through(block, leaf({1, 1})));
  y.backward({}, true);
  y.backward();
  EXPECT_THAT(values(block.weight.grad()), ElementsAre(2 * std::exp(1.0), 2 * std::exp(2.0)));
  EXPECT_EQ(block.runs, 3);
  EXPECT_THAT(error_of([&] { y.backward(); }), HasSubstr("retain_graph"));
}

TEST(Recompute, SecondDerivatives) {
  auto run = [](bool again) {
    Tensor x = leaf({0.5}), w = leaf({2});
    auto fn = [&](const Tensors& in) { return exp(in[0] * w); };
    Tensor y = again ? recompute(fn, {x}) : fn({x});
    Tensors first = grad({y}, {x, w}, {}, true, true);
    Tensors second = grad({first[0]}, {x, w});
    return std::pair(second[0].item(), second[1].item());
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Recompute, ParametersChangedBeforeBackwardAreReported) {
  Block block{leaf({1, 2})};
  Tensor y = sum(through(block, leaf({1, 1})));
  no_grad([&] { return block.weight.fill_(0); });
  EXPECT_THAT(error_of([&] { y.backward(); }), HasSubstr("changed in place"));
}

TEST(Recompute, ParametersReadInTheSecondRunAloneAreReported) {
  Tensor x = leaf({1, 2}), w = leaf({3, 4});
  int runs = 0;
  Tensor y = sum(recompute([&](const Tensors& in) { return runs++ == 0 ? exp(in[0]) : exp(in[0] * w); }, {x}));
  EXPECT_THAT(error_of([&] { y.backward(); }), HasSubstr("had not read"));
}

}  // namespace
}  // namespace xylem
