// SPDX-License-Identifier: Apache-2.0
// What the registry's samples cannot show of the reductions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/helpers.h"

namespace xylem {
namespace {

TEST(Reduce, SumsOfManyFloatsStayAccurate) {
  int64_t n = 1 << 22;
  Tensor x = full({n}, 0.1f);
  EXPECT_NEAR(sum(x).item() / (double(0.1f) * double(n)), 1, 5e-7);
  EXPECT_NEAR(sum(x.reshape({n / 4, 4}), {0})[0].item() / (double(0.1f) * double(n / 4)), 1, 5e-7);
}

TEST(Reduce, HalfSumsAccumulateInF32) {
  EXPECT_EQ(sum(ones({4096}, bf16)).item(), 4096);   // bf16 alone would stop at 256
  EXPECT_EQ(mean(full({70000}, 2, f16)).item(), 2);  // the f16 sum alone would overflow
}

TEST(Reduce, VarianceOfASmallSpreadAroundALargeMean) {
  Tensor x = (sample_normal({10000}) * 1e-2 + 1e3).to(f32);
  double truth = var(x.to(f64)).item();
  EXPECT_NEAR(var(x).item(), truth, 1e-3 * truth);
  EXPECT_GT(truth, 0);
}

TEST(Reduce, IntegersSumExactly) {
  EXPECT_EQ(sum(full({3, 5}, 7, i32)).item<int64_t>(), 105);
  EXPECT_EQ(sum(full({3, 5}, 7, i32)).dtype(), i64);
  const int64_t big = (int64_t(1) << 53) + 1;
  for (Device device : test_devices()) {
    Tensor x = from_vector<int64_t>({big, 2, -big, 4, big, 8}, {3, 2}, device);
    EXPECT_EQ(sum(x).item<int64_t>(), big + 14) << device;
    EXPECT_THAT(sum(x, {0}).to_vector<int64_t>(), testing::ElementsAre(big, 14));
    EXPECT_THAT(sum(x, {1}).to_vector<int64_t>(), testing::ElementsAre(big + 2, 4 - big, big + 8));
    const int64_t odd = (int64_t(1) << 45) + 1;
    EXPECT_EQ(sum(full({100000}, odd, i64, device)).item<int64_t>(), 100000 * odd);
    EXPECT_EQ(sum(full({3000, 3}, odd, i64, device), {0})[1].item<int64_t>(), 3000 * odd);
    EXPECT_EQ(sum(full({70000}, 200, u8, device)).item<int64_t>(), 14000000);
  }
}

TEST(Reduce, NanWinsMaxAndMin) {
  Tensor x = from_vector<float>({1, NAN, 3}, {3});
  EXPECT_TRUE(std::isnan(amax(x).item()));
  EXPECT_TRUE(std::isnan(amin(x).item()));
}

TEST(Reduce, ThreadsDoNotChangeResults) {
  Tensor x = sample_normal({3000, 37}).to(f32);
  expect_same_with_threads([&] { return std::tuple(values(sum(x)), values(sum(x, {0})), values(sum(x, {1}))); });
}

TEST(Reduce, ErrorsNameDimensions) {
  Tensor x = zeros({2, 0});
  EXPECT_THROW(amax(x, {1}), Error);
  EXPECT_THROW(sum(x, {0, 0}), Error);
  EXPECT_THROW(sum(x, {2}), Error);
  EXPECT_THROW(argmax(x, 1), Error);
  EXPECT_THROW(topk(zeros({3}), 4), Error);
  EXPECT_THROW(sum_to(zeros({3}), {2}), Error);
}

TEST(Topk, IsSortedAndPrefersEarlierTies) {
  auto [v, i] = topk(from_vector<float>({1, 5, 5, 2}, {4}), 3);
  EXPECT_THAT(v.to_vector<int>(), testing::ElementsAre(5, 5, 2));
  EXPECT_THAT(i.to_vector<int>(), testing::ElementsAre(1, 2, 3));
}

TEST(Topk, NanComesFirst) {
  Tensor x = from_vector<float>({1, NAN, 5, NAN, 7}, {5});
  EXPECT_EQ(argmax(x).item<int>(), 1);
  EXPECT_THAT(topk(x, 4).second.to_vector<int>(), testing::ElementsAre(1, 3, 4, 2));
}

TEST(Reduce, ExtremaOfLongRows) {
  Tensor x = sample_normal({3, 1001}).to(f32);
  auto v = x.to_vector<float>();
  auto high = amax(x, {1}).to_vector<float>(), low = amin(x, {1}).to_vector<float>();
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(high[r], *std::max_element(v.begin() + r * 1001, v.begin() + (r + 1) * 1001));
    EXPECT_EQ(low[r], *std::min_element(v.begin() + r * 1001, v.begin() + (r + 1) * 1001));
  }
  no_grad([&] { x.slice(0, 1, 2).slice(1, 500, 501).fill_(NAN); });
  EXPECT_TRUE(std::isnan(amax(x, {1})[1].item()));
  EXPECT_TRUE(std::isnan(amin(x).item()));
}

TEST(Softmax, HandlesInfinities) {
  Tensor x = from_vector<float>({-INFINITY, 0, 0}, {3});
  EXPECT_THAT(softmax(x).to_vector<float>(), testing::ElementsAre(0, 0.5, 0.5));
  EXPECT_NEAR(softmax(from_vector<float>({1e30f, 0}, {2}))[0].item(), 1, 0);
}

}  // namespace
}  // namespace xylem
