// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "core/device/allocator.h"
#include "ops/matmul/matmul.h"
#include "ops/ops.h"

namespace xy = xylem;
using xy::DType;
using xy::Shape;
using xy::Tensor;

namespace {

// c[i, j] = sum over p of a[i, p] * b[p, j] for row-major values.
std::vector<double> multiply(const std::vector<double>& a, const std::vector<double>& b, int64_t m, int64_t n,
                             int64_t k) {
  std::vector<double> c(m * n);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t p = 0; p < k; ++p) c[i * n + j] += a[i * k + p] * b[p * n + j];
  return c;
}
std::vector<double> transpose(const std::vector<double>& a, int64_t rows, int64_t cols) {
  std::vector<double> t(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) t[j * rows + i] = a[i * cols + j];
  return t;
}
void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << "at " << i;
}
std::vector<double> values(const Tensor& t) { return t.to_vector<double>(); }

TEST(Matmul, MatchesLoopsForEveryTypeAndTiledSizes) {
  for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {3, 5, 7}, {130, 257, 70}, {300, 40, 600}}) {
    for (auto [type, tolerance] : {std::pair{xy::f64, 1e-12}, {xy::f32, 2e-5}, {xy::f16, 3e-3}, {xy::bf16, 2e-2}}) {
      Tensor a = xy::sample_normal({m, k}, 1, 1).to(type), b = xy::sample_normal({k, n}, 1, 2).to(type);
      Tensor y = xy::matmul(a, b);
      EXPECT_EQ(y.dtype(), type);
      EXPECT_EQ(y.shape(), (Shape{m, n}));
      expect_near(values(y), multiply(values(a), values(b), m, n, k), tolerance);
    }
  }
}

TEST(Matmul, ReadsTransposedAndSlicedOperands) {
  Tensor a = xy::sample_normal({9, 20}), b = xy::sample_normal({30, 9}, 1, 2);
  Tensor at = a.transpose(0, 1).slice(0, 3, 18), bt = b.transpose(0, 1).slice(1, 2, 29);
  expect_near(values(xy::matmul(at, bt)), multiply(values(at), values(bt), 15, 27, 9), 1e-12);
  Tensor every_other = a.slice(1, 0, 20, 2);  // no leading dimension expresses this one
  expect_near(values(xy::matmul(every_other, xy::ones({10, 2}, xy::f64))),
              multiply(values(every_other), std::vector<double>(20, 1), 9, 2, 10), 1e-12);
}

TEST(Matmul, BatchesOfPermutedViewsNeedNoCopy) {
  int64_t B = 3, S = 5, T = 6, H = 4, D = 7;
  Tensor q = xy::sample_normal({B, S, H, D}), k = xy::sample_normal({B, T, H, D}, 1, 2);
  int64_t before = xy::allocator(xy::Device::cpu()).stats().allocations;
  Tensor y = xy::matmul(q.permute({0, 2, 1, 3}), k.permute({0, 2, 3, 1}));
  EXPECT_EQ(xy::allocator(xy::Device::cpu()).stats().allocations - before, 1);
  EXPECT_EQ(y.shape(), (Shape{B, H, S, T}));
  std::vector<double> qv = values(q), kv = values(k), want(B * H * S * T);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t s = 0; s < S; ++s)
        for (int64_t t = 0; t < T; ++t)
          for (int64_t d = 0; d < D; ++d)
            want[((b * H + h) * S + s) * T + t] +=
                qv[((b * S + s) * H + h) * D + d] * kv[((b * T + t) * H + h) * D + d];
  expect_near(values(y), want, 1e-12);
}

TEST(Matmul, BroadcastsBatchDimensionsAndReducesTheirGradients) {
  Tensor a = xy::sample_normal({2, 1, 3, 4}).set_requires_grad(),
         b = xy::sample_normal({5, 4, 2}, 1, 2).set_requires_grad();
  Tensor y = xy::matmul(a, b);
  EXPECT_EQ(y.shape(), (Shape{2, 5, 3, 2}));
  Tensor dy = xy::sample_normal(y.shape(), 1, 3);
  y.backward(dy);
  std::vector<double> da(a.numel()), db(b.numel());
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 5; ++j) {
      std::vector<double> ai = values(a.detach()[i][0]), bj = values(b.detach()[j]), g = values(dy[i][j]);
      expect_near(values(y.detach()[i][j]), multiply(ai, bj, 3, 2, 4), 1e-12);
      std::vector<double> pa = multiply(g, transpose(bj, 4, 2), 3, 4, 2),
                          pb = multiply(transpose(ai, 3, 4), g, 4, 2, 3);
      for (int64_t e = 0; e < 12; ++e) da[i * 12 + e] += pa[e];
      for (int64_t e = 0; e < 8; ++e) db[j * 8 + e] += pb[e];
    }
  expect_near(values(a.grad()), da, 1e-12);
  expect_near(values(b.grad()), db, 1e-12);
}

TEST(Matmul, TreatsVectorsAsNumPyDoes) {
  Tensor a = xy::sample_normal({3, 4}), v = xy::sample_normal({4}, 1, 2), u = xy::sample_normal({3}, 1, 3);
  EXPECT_EQ(xy::matmul(a, v).shape(), (Shape{3}));
  expect_near(values(xy::matmul(a, v)), multiply(values(a), values(v), 3, 1, 4), 1e-12);
  EXPECT_EQ(xy::matmul(u, a).shape(), (Shape{4}));
  expect_near(values(xy::matmul(u, a)), multiply(values(u), values(a), 1, 4, 3), 1e-12);
  Tensor dot = xy::matmul(v, v);
  EXPECT_EQ(dot.shape(), Shape{});
  expect_near(values(dot), multiply(values(v), values(v), 1, 1, 4), 1e-12);
}

TEST(Matmul, EmptySizes) {
  EXPECT_EQ(xy::matmul(xy::zeros({0, 4}), xy::zeros({4, 3})).shape(), (Shape{0, 3}));
  expect_near(values(xy::matmul(xy::zeros({2, 0}), xy::zeros({0, 3}))), std::vector<double>(6, 0), 0);
}

TEST(Matmul, NamesBothShapesInErrors) {
  try {
    xy::matmul(xy::zeros({2, 3}), xy::zeros({4, 5}));
    FAIL();
  } catch (const xy::Error& e) {
    EXPECT_NE(std::string(e.what()).find("[2, 3]"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("[4, 5]"), std::string::npos);
    EXPECT_EQ(e.op(), "matmul");
  }
  EXPECT_THROW(xy::matmul(xy::zeros({2, 3}), xy::zeros({3, 5}, xy::f64)), xy::Error);
}

TEST(Gemm, AccumulatesAndWidensToF32) {
  Tensor a = xy::sample_normal({70, 90}).to(xy::bf16), b = xy::sample_normal({90, 33}, 1, 2).to(xy::bf16);
  std::vector<double> once = multiply(values(a), values(b), 70, 33, 90), twice = once;
  for (double& v : twice) v *= 2;
  Tensor d = xy::full({70, 33}, 5);
  xy::gemm(a, b, d);
  expect_near(values(d), once, 1e-5);
  xy::gemm(a, b, d, true);
  expect_near(values(d), twice, 1e-5);
}

struct LinearCase {
  DType type;
  double tolerance;
};
class Linear : public testing::TestWithParam<LinearCase> {};

TEST_P(Linear, ForwardAndGradientsMatchLoops) {
  auto [type, tolerance] = GetParam();
  int64_t rows = 6, in = 11, out = 9;
  Tensor x = xy::sample_normal({2, 3, in}).to(type).set_requires_grad();
  Tensor w = xy::sample_normal({out, in}, 1, 2).to(type).set_requires_grad();
  Tensor b = xy::sample_normal({out}, 1, 3).to(type).set_requires_grad();
  Tensor y = xy::linear(x, w, b);
  EXPECT_EQ(y.shape(), (Shape{2, 3, out}));
  std::vector<double> xv = values(x), wv = values(w), bv = values(b),
                      want = multiply(xv, transpose(wv, out, in), rows, out, in);
  for (int64_t i = 0; i < rows * out; ++i) want[i] += bv[i % out];
  expect_near(values(y), want, tolerance);

  Tensor dy = xy::sample_normal(y.shape(), 1, 4).to(type);
  std::vector<double> g = values(dy), db(out);
  for (int64_t i = 0; i < rows * out; ++i) db[i % out] += g[i];
  y.backward(dy);
  expect_near(values(x.grad()), multiply(g, wv, rows, in, out), tolerance);
  expect_near(values(w.grad()), multiply(transpose(g, rows, out), xv, out, in, rows), tolerance);
  expect_near(values(b.grad()), db, tolerance);
}
INSTANTIATE_TEST_SUITE_P(Types, Linear,
                         testing::Values(LinearCase{xy::f64, 1e-12}, LinearCase{xy::f32, 1e-5},
                                         LinearCase{xy::f16, 4e-3}, LinearCase{xy::bf16, 3e-2}),
                         [](const auto& info) { return std::string(xy::name_of(info.param.type)); });

TEST(LinearSink, AccumulatesIntoTheParametersOwnF32Buffer) {
  Tensor x = xy::sample_normal({4, 3}).to(xy::bf16),
         w = xy::sample_normal({5, 3}, 1, 2).to(xy::bf16).set_requires_grad(),
         b = xy::zeros({5}, xy::bf16).set_requires_grad();
  Tensor flat = xy::full({20}, 7), dw = flat.slice(0, 0, 15).view({5, 3}), db = flat.slice(0, 15, 20);
  w.set_grad(dw), b.set_grad(db);
  w.zero_grad(), b.zero_grad();
  Tensor dy = xy::sample_normal({4, 5}, 1, 3).to(xy::bf16);
  std::vector<double> once = multiply(transpose(values(dy), 4, 5), values(x), 5, 3, 4);
  for (int pass = 1; pass <= 3; ++pass) {
    xy::linear(x, w, b).backward(dy);
    std::vector<double> want = once;
    for (double& v : want) v *= pass;
    expect_near(values(dw), want, 1e-5);
    for (int64_t j = 0; j < 5; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < 4; ++i) sum += values(dy)[i * 5 + j];
      EXPECT_NEAR(values(db)[j], pass * sum, 1e-4);
    }
  }
}

TEST(LinearSink, SecondDerivativeOfASumOfSquares) {
  // L = sum((x w^T)^2); dL/dx = 2 (x w^T) w; the derivative of sum(dL/dx) with respect to x is 2 (1 w^T) w.
  Tensor x = xy::sample_normal({4, 3}).set_requires_grad(), w = xy::sample_normal({5, 3}, 1, 2).set_requires_grad();
  Tensor y = xy::linear(x, w);
  Tensor gx = xy::grad({y}, {x}, {xy::mul(y, 2.0)}, false, true)[0];
  Tensor ggx = xy::grad({gx}, {x}, {xy::ones({4, 3}, xy::f64)})[0];
  std::vector<double> ones(12, 1), wv = values(w);
  std::vector<double> want = multiply(multiply(ones, transpose(wv, 5, 3), 4, 5, 3), wv, 4, 3, 5);
  for (double& v : want) v *= 2;
  expect_near(values(ggx), want, 1e-12);
}

TEST(ColumnSum, LongColumns) {
  Tensor x = xy::full({100001, 3}, 0.1);
  Tensor out = xy::empty({3});
  xy::column_sum(x, out, false);
  for (double v : values(out)) EXPECT_NEAR(v, 10000.1, 0.05);
}

}  // namespace
