// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "core/util/rng.h"
#include "ops/ops.h"

namespace xylem {
namespace {

TEST(Random, NormalHasTheRightMoments) {
  rng::seed(11);
  Tensor x = randn({200000}, f64);
  EXPECT_NEAR(mean(x).item(), 0, 0.01);
  EXPECT_NEAR(var(x).item(), 1, 0.02);
  EXPECT_NEAR(mean(x * x * x * x).item(), 3, 0.1);
  Tensor pairs = x.reshape({100000, 2});
  EXPECT_NEAR(mean(pairs.select(1, 0) * pairs.select(1, 1)).item(), 0, 0.02);
}

TEST(Random, UniformFillsTheIntervalEvenly) {
  rng::seed(12);
  Tensor x = empty({100000}, f32);
  uniform_(x, -2, 6);
  std::vector<int> bins(8);
  for (float v : x.to_vector<float>()) {
    ASSERT_GE(v, -2);
    ASSERT_LT(v, 6);
    ++bins[int(v + 2)];
  }
  double chi = 0;
  for (int b : bins) chi += (b - 12500.0) * (b - 12500.0) / 12500;
  EXPECT_LT(chi, 24.3);  // 7 degrees of freedom, p = 0.001
}

TEST(Random, FillsStridedTensors) {
  rng::seed(13);
  Tensor x = zeros({4, 6});
  normal_(x.slice(1, 0, 6, 2), 5, 1e-3);
  auto v = x.to_vector<float>();
  for (int i = 0; i < 24; ++i) EXPECT_NEAR(v[i], i % 2 ? 0 : 5, 0.02);
}

TEST(Dropout, KeepsTheGivenShareAndScales) {
  rng::seed(14);
  auto v = dropout(ones({100000}), 0.3).to_vector<float>();
  int64_t kept = 0;
  for (float e : v) {
    EXPECT_TRUE(e == 0 || std::abs(e - 1 / 0.7f) < 1e-6);
    kept += e != 0;
  }
  EXPECT_NEAR(double(kept) / 100000, 0.7, 0.006);
}

TEST(Dropout, BackwardUsesTheForwardMask) {
  rng::seed(15);
  Tensor x = ones({1000}).set_requires_grad();
  Tensor y = dropout(x, 0.5);
  sum(y).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), y.to_vector<float>());
}

TEST(Dropout, IsTheIdentityInEvaluation) {
  Tensor x = ones({3});
  EXPECT_TRUE(dropout(x, 0.5, false).same_as(x));
  EXPECT_THROW(dropout(x, 1.0), Error);
}

TEST(Dropout, BackwardAfterTheNextStepIsRefused) {
  Tensor x = ones({3}).set_requires_grad(), y = dropout(x, 0.5);
  rng::next_step();
  EXPECT_THROW(sum(y).backward(), Error);
}

}  // namespace
}  // namespace xylem
