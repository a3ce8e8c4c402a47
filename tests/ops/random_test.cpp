// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "core/random/rng.h"
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

TEST(Random, UniformStaysBelowOneInEveryType) {
  for (DType t : {f64, f32, f16, bf16}) {
    rng::seed(16);
    Tensor x = rand({1 << 20}, t);
    EXPECT_LT(amax(x).item(), 1) << t;
    EXPECT_GT(amax(x).item(), 0.99) << t;
    EXPECT_EQ(amin(x).item() < 0.01, true) << t;
    EXPECT_NEAR(mean(x.to(f64)).item(), 0.5, 0.004) << t;  // f16 and bf16 round down
  }
}

// Box and Muller's formula, spelt out on the words that the generator documents.
TEST(Random, NormalFollowsTheFormula) {
  rng::seed(17);
  auto x = randn({1003}).to_vector<float>();
  rng::seed(17);
  RngKey key = rng::draw({});
  for (int64_t i = 0; i < 1003; ++i) {
    Philox4 r = key(uint64_t(i / 4));
    int pair = int(i % 4) / 2 * 2;
    double radius = std::sqrt(-2 * std::log((r.v[pair] + 0.5) / 4294967296.0));
    double angle = 2 * M_PI * r.v[pair + 1] / 4294967296.0;
    ASSERT_NEAR(x[i], radius * (i % 2 ? std::sin(angle) : std::cos(angle)), 5e-7) << i;
  }
}

TEST(Random, DrawsDoNotDependOnTheLength) {
  rng::seed(18);
  auto longer = rand({1000}).to_vector<float>();
  rng::seed(18);
  auto shorter = rand({77}).to_vector<float>();
  longer.resize(77);
  EXPECT_EQ(longer, shorter);
}

TEST(Random, CudaDrawsTheSameNumbers) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (DType t : {f64, f32, f16, bf16}) {
    auto draw = [t](Device device) {
      rng::seed(19);
      Tensor a = empty({4099}, t, device), b = empty({4099}, t, device);
      uniform_(a, -0.3, 0.7);
      normal_(b, 5, 0.3);
      return std::tuple(a.to_vector<float>(), b.to_vector<float>(), dropout(a, 0.3).to_vector<float>());
    };
    EXPECT_EQ(draw(Device::cuda()), draw({})) << t;
  }
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
