// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/helpers.h"

namespace xy = xylem;
using xy::expect_near;
using xy::Shape;
using xy::Tensor;
using xy::values;

namespace {

Tensor image(const std::vector<double>& v, int64_t h, int64_t w) { return xy::from_vector(v, {1, 1, h, w}); }
std::vector<double> iota(int64_t n) {
  std::vector<double> v(n);
  for (int64_t i = 0; i < n; ++i) v[i] = double(i);
  return v;
}

TEST(MaxPool, TakesTheLargestAndSendsItTheGradient) {
  Tensor x = image({1, 5, 2, 0, 3, 4, 8, 1, 7, 6, 9, 2, 0, 1, 2, 3}, 4, 4).set_requires_grad();
  Tensor y = xy::max_pool2d(x, {});
  EXPECT_EQ(y.shape(), (Shape{1, 1, 2, 2}));
  EXPECT_EQ(values(y), (std::vector<double>{5, 8, 7, 9}));
  y.backward(image({10, 20, 30, 40}, 2, 2));
  EXPECT_EQ(values(x.grad()), (std::vector<double>{0, 10, 0, 0, 0, 0, 20, 0, 30, 0, 40, 0, 0, 0, 0, 0}));
}

TEST(MaxPool, OverlappingWindowsAddTheirGradients) {
  Tensor x = image({0, 1, 0, 2, 9, 3, 0, 4, 0}, 3, 3).set_requires_grad();
  Tensor y = xy::max_pool2d(x, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}});
  EXPECT_EQ(values(y), std::vector<double>(9, 9));
  y.backward(xy::ones({1, 1, 3, 3}, xy::f64));
  EXPECT_EQ(values(x.grad()), (std::vector<double>{0, 0, 0, 0, 9, 0, 0, 0, 0}));
}

TEST(MaxPool, PaddingNeverWinsAndNaNAlwaysDoes) {
  Tensor y = xy::max_pool2d(image({-3, -1, -2, NAN}, 2, 2), {.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}});
  std::vector<double> v = values(y);
  EXPECT_EQ(v[0], -3);
  EXPECT_EQ(v[1], -1);
  EXPECT_TRUE(std::isnan(v[4]));
}

TEST(AvgPool, CountsPaddingOnlyWhenAsked) {
  Tensor x = image({1, 2, 3, 4}, 2, 2);
  xy::PoolArgs args = {.kernel = {2, 2}, .stride = {2, 2}, .padding = {1, 1}};
  EXPECT_EQ(values(xy::avg_pool2d(x, args)), (std::vector<double>{0.25, 0.5, 0.75, 1}));
  args.count_include_pad = false;
  EXPECT_EQ(values(xy::avg_pool2d(x, args)), (std::vector<double>{1, 2, 3, 4}));
}

TEST(AvgPool, SharesTheGradientOfEachWindow) {
  Tensor x = xy::zeros({1, 1, 3, 5}, xy::f64).set_requires_grad();
  Tensor y = xy::avg_pool2d(x, {.kernel = {2, 3}, .stride = {1, 2}});
  y.backward(image({6, 12, 18, 24}, 2, 2));
  EXPECT_EQ(values(x.grad()), (std::vector<double>{1, 1, 3, 2, 2, 4, 4, 10, 6, 6, 3, 3, 7, 4, 4}));
}

TEST(AdaptiveAvgPool, WindowsFollowTheFloorCeilRule) {
  Tensor x = image(iota(5), 1, 5).set_requires_grad();
  Tensor y = xy::adaptive_avg_pool2d(x, {1, 3});  // [0,2) [1,4) [3,5)
  expect_near(values(y), {0.5, 2, 3.5}, 1e-12);
  y.backward(image({2, 3, 4}, 1, 3));
  expect_near(values(x.grad()), {1, 2, 1, 3, 2}, 1e-12);
  expect_near(values(xy::adaptive_avg_pool2d(xy::ones({2, 3, 5, 4}), {1, 1})), std::vector<double>(6, 1), 1e-6);
}

TEST(Interpolate, NearestRepeatsPixels) {
  Tensor x = image({1, 2, 3, 4}, 2, 2).set_requires_grad();
  Tensor y = xy::interpolate(x, {4, 4}, xy::Interpolation::nearest);
  EXPECT_EQ(values(y), (std::vector<double>{1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4}));
  y.backward(image(iota(16), 4, 4));
  EXPECT_EQ(values(x.grad()), (std::vector<double>{0 + 1 + 4 + 5, 2 + 3 + 6 + 7, 8 + 9 + 12 + 13, 10 + 11 + 14 + 15}));
  EXPECT_EQ(values(xy::interpolate(image(iota(5), 1, 5), {1, 3}, xy::Interpolation::nearest)),
            (std::vector<double>{0, 1, 3}));
}

// Values that torch.nn.functional.interpolate documents for these arguments.
TEST(Interpolate, BilinearBothCornerRules) {
  Tensor x = image({1, 2, 3, 4}, 2, 2);
  expect_near(values(xy::interpolate(x, {4, 4}, xy::Interpolation::bilinear)),
              {1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4}, 1e-12);
  expect_near(values(xy::interpolate(x, {4, 4}, xy::Interpolation::bilinear, true)),
              {1, 4 / 3., 5 / 3., 2, 5 / 3., 2, 7 / 3., 8 / 3., 7 / 3., 8 / 3., 3, 10 / 3., 3, 10 / 3., 11 / 3., 4},
              1e-12);
}

TEST(Pool, RejectsImpossibleArguments) {
  EXPECT_THROW(xy::max_pool2d(xy::zeros({1, 1, 4, 4}), {.kernel = {2, 2}, .padding = {2, 2}}), xy::Error);
  EXPECT_THROW(xy::avg_pool2d(xy::zeros({1, 1, 1, 4}), {}), xy::Error);
  EXPECT_THROW(xy::max_pool2d(xy::zeros({1, 4, 4}), {}), xy::Error);
  EXPECT_THROW(xy::interpolate(xy::zeros({1, 1, 4, 4}), {2, 2}, xy::Interpolation::nearest, true), xy::Error);
}

}  // namespace
