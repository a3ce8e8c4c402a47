// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "ops/conv/conv.h"
#include "tests/ops/helpers.h"

namespace xy = xylem;
using xy::ConvArgs;
using xy::expect_near;
using xy::Shape;
using xy::Tensor;
using xy::values;

namespace {

// Calls f(x index, w index, y index) for every product that the convolution adds.
template <class F>
void each_product(const Shape& x, const Shape& w, const Shape& y, const ConvArgs& a, F&& f) {
  int64_t kg = w[0] / a.groups;
  for (int64_t n = 0; n < x[0]; ++n)
    for (int64_t k = 0; k < w[0]; ++k)
      for (int64_t p = 0; p < y[2]; ++p)
        for (int64_t q = 0; q < y[3]; ++q)
          for (int64_t c = 0; c < w[1]; ++c)
            for (int64_t r = 0; r < w[2]; ++r)
              for (int64_t s = 0; s < w[3]; ++s) {
                int64_t i = p * a.stride[0] - a.padding[0] + r * a.dilation[0],
                        j = q * a.stride[1] - a.padding[1] + s * a.dilation[1], channel = k / kg * w[1] + c;
                if (i < 0 || i >= x[2] || j < 0 || j >= x[3]) continue;
                f(((n * x[1] + channel) * x[2] + i) * x[3] + j, ((k * w[1] + c) * w[2] + r) * w[3] + s,
                  ((n * y[1] + k) * y[2] + p) * y[3] + q);
              }
}

struct Case {
  const char* name;
  Shape x, w;
  ConvArgs args;
};
const Case kCases[] = {
    {"same3x3", {3, 5, 9, 11}, {7, 5, 3, 3}, {.padding = {1, 1}}},
    {"one_by_one", {2, 6, 5, 7}, {9, 6, 1, 1}, {}},
    {"one_by_one_stride2", {2, 6, 7, 9}, {16, 6, 1, 1}, {.stride = {2, 2}}},
    {"stride2", {2, 4, 12, 9}, {8, 4, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
    {"stem7x7", {1, 3, 23, 20}, {10, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
    {"uneven", {2, 2, 13, 8}, {3, 2, 3, 2}, {.stride = {3, 1}, .padding = {2, 0}, .dilation = {1, 2}}},
    {"stride_above_filter", {2, 3, 10, 11}, {4, 3, 2, 1}, {.stride = {3, 4}}},
    {"dilated", {2, 3, 12, 10}, {5, 3, 3, 3}, {.stride = {2, 1}, .padding = {2, 3}, .dilation = {3, 2}}},
    {"groups", {2, 6, 8, 7}, {9, 2, 3, 3}, {.padding = {1, 0}, .groups = 3}},
    {"depthwise", {2, 9, 8, 8}, {9, 1, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}, .groups = 9}},
    {"padding_above_filter", {1, 2, 3, 3}, {2, 2, 2, 2}, {.padding = {3, 2}}},
    {"filter_as_image", {4, 3, 6, 5}, {2, 3, 6, 5}, {}},
    {"large_image", {1, 2, 40, 70}, {3, 2, 3, 3}, {.padding = {1, 1}}},
    {"many_images", {40, 1, 28, 28}, {17, 1, 3, 3}, {.padding = {1, 1}}},
};

class Conv : public testing::TestWithParam<Case> {
 protected:
  void check(xy::DType type, double tolerance, bool channels_last) {
    const Case& c = GetParam();
    Tensor x = xy::sample_normal(c.x).to(type), w = xy::sample_normal(c.w, 1, 2).to(type),
           b = xy::sample_normal({c.w[0]}, 1, 3).to(type);
    if (channels_last) x = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    x.set_requires_grad(), w.set_requires_grad(), b.set_requires_grad();
    Tensor y = xy::conv2d(x, w, b, c.args);
    if (channels_last && c.x[1] > 1 && y.size(2) * y.size(3) > 1) {
      EXPECT_TRUE(xy::is_channels_last(y));
    }
    Shape ys = y.shape();
    for (int i = 0; i < 2; ++i)
      ASSERT_EQ(
          ys[2 + i],
          (c.x[2 + i] + 2 * c.args.padding[i] - c.args.dilation[i] * (c.w[2 + i] - 1) - 1) / c.args.stride[i] + 1);
    Tensor dy = xy::sample_normal(ys, 1, 4).to(type);
    if (channels_last) dy = dy.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    y.backward(dy);
    std::vector<double> xv = values(x), wv = values(w), bv = values(b), g = values(dy), want(y.numel()), dx(xv.size()),
                        dw(wv.size()), db(bv.size());
    for (int64_t i = 0; i < y.numel(); ++i) {
      int64_t k = i / (ys[2] * ys[3]) % ys[1];
      want[i] = bv[k];
      db[k] += g[i];
    }
    each_product(c.x, c.w, ys, c.args, [&](int64_t i, int64_t j, int64_t o) {
      want[o] += xv[i] * wv[j];
      dx[i] += g[o] * wv[j];
      dw[j] += g[o] * xv[i];
    });
    expect_near(values(y), want, tolerance);
    expect_near(values(x.grad()), dx, tolerance);
    expect_near(values(w.grad()), dw, tolerance);
    expect_near(values(b.grad()), db, tolerance);
  }
};

TEST_P(Conv, F64) { check(xy::f64, 1e-11, false); }
TEST_P(Conv, F32) { check(xy::f32, 2e-4, false); }
TEST_P(Conv, BF16) { check(xy::bf16, 4e-2, false); }
TEST_P(Conv, ChannelsLast) { check(xy::f64, 1e-11, true); }

TEST_P(Conv, TransposedIsTheAdjoint) {
  // <conv(x), y> = <x, conv_transpose(y)> for the same weight; its derivatives follow from the same identity.
  const Case& c = GetParam();
  Tensor x = xy::sample_normal(c.x), w = xy::sample_normal(c.w, 1, 2).set_requires_grad();
  Tensor y = xy::conv2d(x, w.detach(), {}, c.args), g = xy::sample_normal(y.shape(), 1, 4).set_requires_grad();
  std::array<int, 2> output_padding{};
  for (int i = 0; i < 2; ++i)
    output_padding[i] = int(c.x[2 + i] - ((y.size(2 + i) - 1) * c.args.stride[i] - 2 * c.args.padding[i] +
                                          c.args.dilation[i] * (c.w[2 + i] - 1) + 1));
  Tensor t = xy::conv_transpose2d(g, w, {}, c.args, output_padding);
  ASSERT_EQ(t.shape(), c.x);
  std::vector<double> tv = values(t), xv = values(x), yv = values(y), gv = values(g), wv = values(w);
  double left = 0, right = 0;
  for (size_t i = 0; i < yv.size(); ++i) left += yv[i] * gv[i];
  for (size_t i = 0; i < xv.size(); ++i) right += xv[i] * tv[i];
  EXPECT_NEAR(left, right, 1e-9 * (1 + std::abs(left)));
  t.backward(x);
  std::vector<double> dw(wv.size());
  each_product(c.x, c.w, y.shape(), c.args, [&](int64_t i, int64_t j, int64_t o) { dw[j] += gv[o] * xv[i]; });
  expect_near(values(g.grad()), yv, 1e-11);
  expect_near(values(w.grad()), dw, 1e-11);
}
INSTANTIATE_TEST_SUITE_P(Shapes, Conv, testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(ConvEdges, EmptyBatch) {
  Tensor x = xy::zeros({0, 3, 5, 5}).set_requires_grad(), w = xy::ones({2, 3, 3, 3}).set_requires_grad();
  Tensor y = xy::conv2d(x, w);
  EXPECT_EQ(y.shape(), (Shape{0, 2, 3, 3}));
  y.backward(xy::zeros(y.shape()));
  expect_near(values(w.grad()), std::vector<double>(54, 0), 0);
}

TEST(ConvEdges, ResultsDoNotDependOnTheNumberOfThreads) {
  Tensor x = xy::sample_normal({37, 8, 14, 14}).to(xy::f32), w = xy::sample_normal({8, 8, 3, 3}, 1, 2).to(xy::f32);
  xy::expect_same_with_threads([&] {
    Tensor wg = w.clone().set_requires_grad(), xg = x.clone().set_requires_grad();
    Tensor y = xy::conv2d(xg, wg, {}, {.padding = {1, 1}});
    y.backward(y.detach());
    return std::tuple(values(y), values(wg.grad()), values(xg.grad()));
  });
}

TEST(ConvEdges, WeightGradientsAccumulateIntoTheirBuffer) {
  Tensor x = xy::sample_normal({2, 3, 5, 5}).to(xy::bf16),
         w = xy::sample_normal({4, 3, 3, 3}, 1, 2).to(xy::bf16).set_requires_grad();
  Tensor buffer = xy::full({4, 3, 3, 3}, 9);
  w.set_grad(buffer);
  w.zero_grad();
  Tensor dy = xy::sample_normal({2, 4, 3, 3}, 1, 3).to(xy::bf16);
  xy::conv2d(x, w).backward(dy);
  std::vector<double> once = values(buffer);
  Tensor plain = w.detach().clone().set_requires_grad();
  xy::conv2d(x, plain).backward(dy);
  expect_near(once, values(plain.grad()), 1e-2);
  xy::conv2d(x, w).backward(dy);
  for (double& v : once) v *= 2;
  expect_near(values(buffer), once, 1e-5);
}

TEST(ConvEdges, SecondDerivative) {
  // conv is linear in x: the gradient of <conv(x, w), g> with respect to w is linear in x, with derivative D(g, v).
  ConvArgs args = {.stride = {2, 1}, .padding = {1, 1}};
  Tensor x = xy::sample_normal({2, 2, 6, 5}).set_requires_grad(),
         w = xy::sample_normal({3, 2, 3, 3}, 1, 2).set_requires_grad();
  Tensor y = xy::conv2d(x, w, {}, args), g = xy::sample_normal(y.shape(), 1, 3), v = xy::sample_normal(w.shape(), 1, 4);
  Tensor dw = xy::grad({y}, {w}, {g}, false, true)[0];
  Tensor dx = xy::grad({dw}, {x}, {v})[0];
  std::vector<double> want(x.numel()), gv = values(g), vv = values(v);
  each_product(x.shape(), w.shape(), y.shape(), args,
               [&](int64_t i, int64_t j, int64_t o) { want[i] += gv[o] * vv[j]; });
  expect_near(values(dx), want, 1e-11);
}

TEST(ConvEdges, ErrorsNameTheShapes) {
  auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const xy::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([] {
              xy::conv2d(xy::zeros({1, 3, 5, 5}), xy::zeros({2, 4, 3, 3}));
            }).find("[2, 4, 3, 3]"),
            std::string::npos);
  EXPECT_NE(message([] {
              xy::conv2d(xy::zeros({1, 3, 2, 2}), xy::zeros({2, 3, 3, 3}));
            }).find("[1, 3, 2, 2]"),
            std::string::npos);
  EXPECT_NE(message([] {
              xy::conv2d(xy::zeros({1, 3, 5, 5}), xy::zeros({2, 3, 3, 3}), xy::zeros({3}));
            }).find("[3]"),
            std::string::npos);
}

}  // namespace
