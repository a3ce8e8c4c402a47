// SPDX-License-Identifier: Apache-2.0
#include "core/autograd/autograd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

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

TEST(Autograd, SumsContributionsOfAllPaths) {
  Tensor x = leaf({2, 3});
  Tensor y = x * x + x * 3.0;  // dy/dx = 2x + 3
  sum(y).backward();
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(7, 9));
}

TEST(Autograd, AccumulatesUntilZeroed) {
  Tensor x = leaf({1, 2});
  for (int i = 0; i < 3; ++i) sum(x * 2.0).backward();
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(6, 6));
  x.zero_grad();
  EXPECT_TRUE(x.grad_stale());
  sum(x * 5.0).backward();
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(5, 5));
}

TEST(Autograd, WritesIntoAGivenBuffer) {
  Tensor buffer = full({4}, 99, f32), x = from_vector<float>({1, 2}, {2});
  x.set_requires_grad();
  x.set_grad(buffer.narrow(0, 1, 2));
  x.zero_grad();
  sum(x * 2.0).backward();
  sum(x * 2.0).backward();
  EXPECT_THAT(buffer.to_vector<float>(), ElementsAre(99, 4, 4, 99));
}

TEST(Autograd, GradientsDoNotAliasEachOther) {
  Tensor a = leaf({1}), b = leaf({2});
  (a + b).backward();
  no_grad([&] { return a.grad().fill_(42); });
  EXPECT_EQ(b.grad().item(), 1);
}

TEST(Autograd, AMillionOperationsNeedNoStack) {
  Tensor x = leaf({1}), y = x;
  for (int i = 0; i < 1'000'000; ++i) y = y.view({1});
  y.backward();
  EXPECT_EQ(x.grad().item(), 1);
  y = x;
  for (int i = 0; i < 1'000'000; ++i) y = y.view({1});  // dropped unused
}

TEST(Autograd, NoGradRecordsNothing) {
  Tensor x = leaf({1, 2});
  Tensor y = no_grad([&] { return x * 2.0; });
  EXPECT_FALSE(y.requires_grad());
  EXPECT_THAT(error_of([&] { sum(y).backward(); }), HasSubstr("does not depend on anything"));
}

TEST(Autograd, SecondBackwardNeedsRetainGraph) {
  Tensor x = leaf({3});
  Tensor y = x * x;
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(x.grad().item(), 12);
  EXPECT_THAT(error_of([&] { y.backward(); }), HasSubstr("retain_graph"));
}

TEST(Autograd, ReportsSavedTensorsChangedInPlace) {
  Tensor x = leaf({3}), y = x * 1.0, z = y * y;
  no_grad([&] { return y.fill_(7); });
  EXPECT_THAT(error_of([&] { z.backward(); }), HasSubstr("changed in place"));
  Tensor w = x + 1.0;  // addition keeps nothing
  no_grad([&] { return x.fill_(7); });
  w.backward();
  EXPECT_EQ(x.grad().item(), 1);
}

TEST(Autograd, RefusesInPlaceChangesWhileRecording) {
  Tensor x = leaf({3});
  EXPECT_THAT(error_of([&] { x.fill_(1); }), HasSubstr("in-place"));
}

TEST(Autograd, HooksSeeAndReplaceGradients) {
  Tensor x = leaf({1, 1}), y = x * 2.0;
  int seen = 0;
  y.register_hook([&](const Tensor& g) {
    ++seen;
    return g * 10.0;
  });
  x.register_hook([&](const Tensor&) {
    ++seen;
    return Tensor();
  });
  sum(y).backward();
  EXPECT_EQ(seen, 2);
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(20, 20));
}

TEST(Autograd, GradReadyRunsOncePerBackwardAfterTheLastContribution) {
  Tensor x = leaf({1});
  std::vector<double> seen;
  x.register_grad_ready([&](const Tensor& l) { seen.push_back(l.grad().item()); });
  (x * 2.0 + x * 3.0 + x * 4.0).backward();
  EXPECT_THAT(seen, ElementsAre(9));
}

TEST(Autograd, GradReturnsWithoutAccumulating) {
  Tensor x = leaf({2}), w = leaf({5});
  Tensor y = x * w;
  EXPECT_EQ(grad({y}, {x})[0].item(), 5);
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(Autograd, HigherDerivatives) {
  Tensor x = leaf({2});
  Tensor y = x * x * x;
  Tensor first = grad({y}, {x}, {}, true, true)[0];
  EXPECT_EQ(first.item(), 12);
  Tensor second = grad({first}, {x}, {}, true, true)[0];
  EXPECT_EQ(second.item(), 12);
  EXPECT_EQ(grad({second}, {x})[0].item(), 6);
}

TEST(Autograd, ErrorsNameTheOperation) {
  Tensor a = leaf({1, 2}), b = leaf({1, 2, 3});
  std::string text = error_of([&] { a* b; });
  EXPECT_THAT(text, HasSubstr("mul"));
  EXPECT_THAT(text, HasSubstr("[2]"));
  EXPECT_THAT(text, HasSubstr("[3]"));
}

TEST(Autograd, ObserversSeeOperationsInOrder) {
  struct Names : OpObserver {
    std::vector<std::string> names;
    void on_op(const OpSpec& spec, std::span<const Tensor>, std::span<const Tensor>, const Attrs&) override {
      names.push_back(spec.name);
    }
  } seen;
  Tensor x = leaf({1, 2});
  exp(x).reshape({2, 1});
  EXPECT_THAT(seen.names, ElementsAre("exp", "reshape"));
}

TEST(Autograd, ObserversThatThrowDoNotSilenceTheOthers) {
  struct Counting : OpObserver {
    int seen = 0;
    void on_op(const OpSpec&, std::span<const Tensor>, std::span<const Tensor>, const Attrs&) override { ++seen; }
  } outer;
  struct Refusing : OpObserver {
    void on_op(const OpSpec& spec, std::span<const Tensor>, std::span<const Tensor>, const Attrs&) override {
      XY_FAIL("no ", spec.name, " here");
    }
  };
  Tensor x = leaf({1, 2});
  {
    Refusing inner;
    EXPECT_THAT(error_of([&] { exp(x); }), HasSubstr("no exp here"));
    EXPECT_THAT(error_of([&] { exp(x); }), HasSubstr("no exp here"));  // it still watches
  }
  exp(x);
  EXPECT_EQ(outer.seen, 1);
}

TEST(Autograd, GradRunsAndUsesUpOnlyWhatLeadsToItsInputs) {
  Tensor x = leaf({2, 3}), h = exp(x), y = sum(h * h);
  int below = 0;
  x.register_hook([&](const Tensor&) {
    ++below;
    return Tensor();
  });
  Tensor dh = grad({y}, {h})[0];
  EXPECT_EQ(below, 0);
  h.backward(dh);  // what lies below h is still there
  EXPECT_EQ(below, 1);
  EXPECT_THAT(x.grad().to_vector<double>(),
              ElementsAre(testing::DoubleEq(2 * std::exp(4.0)), testing::DoubleEq(2 * std::exp(6.0))));
}

// A gradient that is the sum of several lies in memory as the result that it belongs to.
TEST(Autograd, SumsAtForksKeepTheOrderOfDimensions) {
  Tensor x = from_vector<double>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {1, 2, 3, 2}).permute({0, 3, 1, 2});
  x = x.detach().set_requires_grad();
  for (int branches = 2; branches <= 3; ++branches) {
    Tensor y = x * 2.0, total = y * 3.0;
    for (int i = 1; i < branches; ++i) total = total + y * double(i);
    Strides found;
    y.register_hook([&](const Tensor& g) {
      found = g.strides();
      return Tensor();
    });
    sum(total * x.detach()).backward();
    EXPECT_EQ(found, x.strides()) << branches << " branches";
    for (double g : (x.grad() / x.detach()).to_vector<double>()) {
      EXPECT_EQ(g, branches == 2 ? 8 : 12);
    }
    x.zero_grad();
  }
}

TEST(Autograd, SumsLeaveGradientsThatOthersHoldAlone) {
  Tensor x = leaf({1, 2}), kept;
  Tensor a = x * 2.0, b = a * 1.0;
  b.register_hook([&](const Tensor& g) {
    kept = g;  // the same tensor goes on to the sum's other operand
    return Tensor();
  });
  sum((b + a * 1.0) + a * 5.0).backward();
  EXPECT_THAT(kept.to_vector<double>(), ElementsAre(1, 1));
  EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(14, 14));
}

// An operation may add to what others have contributed, unless somebody holds it.
TEST(Autograd, OffersTheSumSoFarToWhoCanAddToIt) {
  static const OpSpec& kTimes = *new OpSpec("times_in_place");
  for (bool held : {false, true}) {
    int offered = 0;
    auto times = [&](const Tensor& x, double factor) {
      Tensor y = no_grad([&] { return x * factor; });
      return record(kTimes, y, {x}, {}, [&offered, factor](const Tensor& dy, const Wanted& want) -> Tensors {
        Tensor mine = dy * factor, sum = want.sum_so_far(0, dy.dtype());
        if (!sum.defined()) return {mine};
        ++offered;
        sum.add_(mine);
        return {Tensor()};
      });
    };
    Tensor x = leaf({1, 2}), kept;
    Tensor y = x * 1.0, first = y * 1.0;
    if (held)
      first.register_hook([&](const Tensor& g) {
        kept = g;
        return g;
      });
    // In the backward pass the operation that was recorded last comes first: first's gradient reaches y, then 2,
    // then 3.
    Tensor third = times(y, 3), second = times(y, 2), copy = y * 1.0;
    sum(copy * 10.0 + second + third + first).backward();
    EXPECT_THAT(x.grad().to_vector<double>(), ElementsAre(16, 16));
    EXPECT_EQ(offered, 2);
    if (held) {
      EXPECT_THAT(kept.to_vector<double>(), ElementsAre(1, 1));
    }
  }
}

}  // namespace
}  // namespace xylem
