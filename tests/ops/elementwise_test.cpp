// SPDX-License-Identifier: Apache-2.0
// What the registry's samples cannot show of the elementwise operations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/elementwise/math.h"
#include "tests/ops/helpers.h"

namespace xylem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

template <class Got, class Want>
double worst_relative_error(Got got, Want want, double low, double high) {
  double worst = 0;
  for (int i = 0; i <= 200000; ++i) {
    float x = float(low + (high - low) * i / 200000);
    double truth = want(double(x));
    worst = std::max(worst, std::abs(double(got(x)) - truth) / std::max(std::abs(truth), 1e-37));
  }
  return worst;
}
#define XY_ERROR(name, low, high) \
  worst_relative_error([](float x) { return math::name(x); }, [](double x) { return std::name(x); }, low, high)

TEST(ElementwiseMath, PolynomialsAreAccurate) {
  EXPECT_LT(XY_ERROR(exp, -87, 88.7), 2e-7);
  EXPECT_LT(XY_ERROR(exp, -1, 1), 2e-7);
  EXPECT_LT(XY_ERROR(log, 1e-6, 10), 2e-7);
  EXPECT_LT(XY_ERROR(log, 0.99, 1.01), 2e-7);
  EXPECT_LT(XY_ERROR(log, 1e30, 3e38), 2e-7);
  EXPECT_LT(XY_ERROR(expm1, -20, 1), 3e-7);
  EXPECT_LT(XY_ERROR(expm1, -1e-6, 1e-9), 3e-7);
  EXPECT_LT(XY_ERROR(log1p, 0, 1), 3e-7);
  EXPECT_LT(XY_ERROR(log1p, 1e-9, 1e-6), 3e-7);
  EXPECT_LT(XY_ERROR(tanh, -10, 10), 3e-7);
  EXPECT_LT(XY_ERROR(tanh, -1e-3, 1e-3), 3e-7);
  EXPECT_LT(XY_ERROR(erf, -5, 5), 3e-7);
  EXPECT_LT(XY_ERROR(erf, -1e-3, 1e-3), 3e-7);
}

TEST(ElementwiseMath, SpecialValues) {
  EXPECT_EQ(math::exp(kInf), kInf);
  EXPECT_EQ(math::exp(-kInf), 0);
  EXPECT_EQ(math::exp(89.0f), kInf);
  EXPECT_EQ(math::exp(0.0f), 1);
  EXPECT_EQ(math::expm1(kInf), kInf);
  EXPECT_EQ(math::expm1(-kInf), -1);
  EXPECT_EQ(math::expm1(0.0f), 0);
  EXPECT_NEAR(math::exp(-100.0f) / std::exp(-100.0f), 1, 0.02);  // subnormal
  EXPECT_EQ(math::log(0.0f), -kInf);
  EXPECT_EQ(math::log(-0.0f), -kInf);
  EXPECT_EQ(math::log(kInf), kInf);
  EXPECT_EQ(math::log(1.0f), 0);
  EXPECT_NEAR(math::log(1e-40f), std::log(1e-40f), 1e-4);  // subnormal
  EXPECT_EQ(math::tanh(kInf), 1);
  EXPECT_EQ(math::tanh(-50.0f), -1);
  EXPECT_EQ(math::erf(-kInf), -1);
  for (float x : {math::exp(kNan), math::expm1(kNan), math::log(kNan), math::log(-1.0f), math::log(-kInf),
                  math::tanh(kNan), math::erf(kNan), math::log1p(kNan)})
    EXPECT_TRUE(std::isnan(x));
}

TEST(Elementwise, TailsOfActivations) {
  Tensor x = from_vector<float>({-1000, -100, 100, 1000}, {4});
  EXPECT_THAT(sigmoid(x).to_vector<float>(), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(softplus(x).to_vector<float>(), ElementsAre(0, testing::FloatNear(0, 1e-40f), 100, 1000));
  EXPECT_THAT(silu(x).to_vector<float>(), ElementsAre(0, 0, 100, 1000));
  EXPECT_THAT(gelu(x).to_vector<float>(), ElementsAre(0, 0, 100, 1000));
  EXPECT_THAT(gelu_tanh(x).to_vector<float>(), ElementsAre(0, 0, 100, 1000));
  for (auto f : {sigmoid, softplus, silu, gelu, gelu_tanh}) {
    x.set_grad({});
    x.set_requires_grad();
    sum(f(x)).backward();
    for (float g : x.grad().to_vector<float>()) EXPECT_TRUE(std::isfinite(g));
  }
}

TEST(Elementwise, BroadcastsLikeIndexArithmetic) {
  struct Case {
    Shape a, b, out;
  };
  for (const Case& c : {Case{{2, 3, 4}, {3, 1}, {2, 3, 4}}, Case{{5, 1, 7}, {1, 6, 1}, {5, 6, 7}},
                        Case{{1}, {2, 2}, {2, 2}}, Case{{4, 1}, {1, 33}, {4, 33}}}) {
    Tensor a = sample_normal(c.a), b = sample_normal(c.b, 1, 2), y = a - b * 2;
    ASSERT_EQ(y.shape(), c.out);
    auto va = a.to_vector<double>(), vb = b.to_vector<double>(), vy = y.to_vector<double>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      int64_t rest = i, ia = 0, ib = 0, stride_a = 1, stride_b = 1;
      for (int d = c.out.rank() - 1; d >= 0; --d) {
        int64_t at = rest % c.out[d];
        rest /= c.out[d];
        int da = d - c.out.rank() + c.a.rank(), db = d - c.out.rank() + c.b.rank();
        if (da >= 0) ia += (c.a[da] == 1 ? 0 : at) * stride_a, stride_a *= c.a[da];
        if (db >= 0) ib += (c.b[db] == 1 ? 0 : at) * stride_b, stride_b *= c.b[db];
      }
      ASSERT_EQ(vy[i], va[ia] - 2 * vb[ib]) << c.a << " " << c.b << " at " << i;
    }
  }
}

TEST(Elementwise, BroadcastGradientsSum) {
  Tensor a = ones({2, 3}).set_requires_grad(), row = ones({3}).set_requires_grad(),
         one = full({}, 2).set_requires_grad();
  sum((a + row) * one).backward();
  EXPECT_THAT(a.grad().to_vector<int>(), ElementsAre(2, 2, 2, 2, 2, 2));
  EXPECT_THAT(row.grad().to_vector<int>(), ElementsAre(4, 4, 4));
  EXPECT_EQ(one.grad().item(), 12);
}

TEST(Elementwise, TypesPromote) {
  auto t = [](DType d) { return ones({2}, d); };
  EXPECT_EQ((t(f16) + t(bf16)).dtype(), f32);
  EXPECT_EQ((t(bf16) * t(i64)).dtype(), bf16);
  EXPECT_EQ((t(i32) + t(i64)).dtype(), i64);
  EXPECT_EQ((t(i32) * t(i32)).dtype(), i32);
  EXPECT_EQ((t(i32) / t(i32)).dtype(), f32);
  EXPECT_EQ((t(i32) + 2).dtype(), i32);
  EXPECT_EQ((t(i32) * 0.5)[0].item(), 0.5);
  EXPECT_EQ((t(u8) * 200.0).to_vector<int>()[0], 200);
  EXPECT_EQ(where(eq(t(i32), 1), t(f16), t(f32)).dtype(), f32);
  EXPECT_EQ(eq(t(i32), t(f64)).dtype(), boolean);
}

TEST(Elementwise, IntegersAreExact) {
  int64_t big = (int64_t(1) << 60) + 1;
  Tensor a = from_vector<int64_t>({big, -big}, {2});
  EXPECT_THAT((a + a).to_vector<int64_t>(), ElementsAre(2 * big, -2 * big));
  EXPECT_THAT(maximum(a, -a).to_vector<int64_t>(), ElementsAre(big, big));
  EXPECT_THAT(eq(a, a + 1).to_vector<int>(), ElementsAre(0, 0));
}

TEST(Elementwise, NumbersKeepTheirKind) {
  const int64_t big = (int64_t(1) << 53) + 1;
  for (Device device : test_devices()) {
    Tensor x = from_vector<int64_t>({7, 49, -3}, {3}, device);
    for (const Tensor& y : {x / 1, x / 1.0, x / 0.5, x / 2, x / 7.0, x * 1.0, x + 0.0, x - 2.0, 1.0 - x})
      EXPECT_EQ(y.dtype(), f32);
    for (const Tensor& y : {x * 2, x + 1, x - 1, 1 - x, -x}) EXPECT_EQ(y.dtype(), i64);
    EXPECT_EQ(values(x / 49)[1], 1);
    EXPECT_EQ(values(x / 0.5), (std::vector<double>{14, 98, -6}));
    EXPECT_EQ((zeros({1}, i64, device) + big).item<int64_t>(), big);
    EXPECT_EQ((ones({1}, i64, device) * big).item<int64_t>(), big);
    EXPECT_EQ(eq(full({1}, big, i64, device), big - 1).item<int>(), 0);
    EXPECT_EQ(gt(full({1}, big, i64, device), big - 1).item<int>(), 1);
    EXPECT_EQ(pow(full({1}, 3, i64, device), full({1}, 39, i64, device)).item<int64_t>(), 4052555153018976267);
    EXPECT_EQ((ones({1}, bf16, device) * 2).dtype(), bf16);
    EXPECT_EQ((ones({1}, u8, device) + 1).dtype(), u8);
  }
}

TEST(Elementwise, GradientsOfMixedTypesComeInTheOperandsType) {
  Tensor a = ones({2}, bf16).set_requires_grad(), b = full({2}, 3, f32).set_requires_grad();
  sum(a * b).backward();
  EXPECT_EQ(a.grad().dtype(), bf16);
  EXPECT_EQ(b.grad().dtype(), f32);
  EXPECT_EQ(a.grad()[0].item(), 3);
}

TEST(Elementwise, MemoryOrderIsKept) {
  Tensor x = randn({2, 5, 4, 3}).permute({0, 3, 1, 2});  // channels-last
  EXPECT_EQ(relu(x).strides(), x.strides());
  EXPECT_EQ((x + randn({3, 1, 1})).strides(), x.strides());
  EXPECT_EQ((x * x).strides(), x.strides());
  EXPECT_TRUE(relu(x.slice(3, 0, 2)).is_contiguous());
  x.set_requires_grad();
  Tensor y = gelu(x);
  EXPECT_EQ(grad({y}, {x}, {ones_like(y)})[0].strides(), x.strides());
}

TEST(Elementwise, NanStaysNan) {
  Tensor x = from_vector<float>({kNan, 1}, {2});
  for (const Tensor& y : {relu(x), abs(x), clamp(x, -1, 1), maximum(x, zeros({2})), maximum(zeros({2}), x),
                          minimum(x, zeros({2})), minimum(zeros({2}), x), exp(x), log(x), gelu(x), silu(x)})
    EXPECT_TRUE(std::isnan(y[0].item()));
  EXPECT_THAT(eq(x, x).to_vector<int>(), ElementsAre(0, 1));
  EXPECT_THAT(le(x, x).to_vector<int>(), ElementsAre(0, 1));
}

std::vector<double> gradient_of(const std::function<Tensor(const Tensor&)>& f, const std::vector<double>& at) {
  Tensor x = from_vector<double>(at, {int64_t(at.size())}).set_requires_grad();
  sum(f(x)).backward();
  return x.grad().to_vector<double>();
}

TEST(Elementwise, GradientsAtKinks) {
  EXPECT_THAT(gradient_of(relu, {-1, 0, 1}), ElementsAre(0, 0, 1));
  EXPECT_THAT(gradient_of(abs, {-2, 0, 2}), ElementsAre(-1, 0, 1));
  EXPECT_THAT(gradient_of([](auto& x) { return clamp(x, 0, 1); }, {-1, 0, 0.5, 1, 2}), ElementsAre(0, 1, 1, 1, 0));
  EXPECT_THAT(gradient_of([](auto& x) { return maximum(x, zeros({3}, f64)); }, {-1, 0, 1}), ElementsAre(0, 0.5, 1));
  EXPECT_THAT(gradient_of([](auto& x) { return minimum(x, zeros({3}, f64)); }, {-1, 0, 1}), ElementsAre(1, 0.5, 0));
  EXPECT_THAT(gradient_of([](auto& x) { return pow(x, 0.0); }, {0, 2}), ElementsAre(0, 0));
  EXPECT_THAT(gradient_of([](auto& x) { return pow(x, 2.0); }, {0, -3}), ElementsAre(0, -6));
  EXPECT_THAT(gradient_of([](auto& b) { return pow(zeros({2}, f64), b); }, {1, 2}), ElementsAre(0, 0));
}

TEST(Elementwise, WhereKeepsNanOutOfTheOtherBranch) {
  Tensor x = from_vector<float>({0, 4}, {2}).set_requires_grad();
  sum(where(gt(x, 0), log(x), zeros({2}))).backward();
  Tensor y = from_vector<float>({0, 4}, {2}).set_requires_grad();
  Tensor bad = full({2}, kNan), out = where(gt(y, 0), y, bad * 0.0);
  out.backward(from_vector<float>({kNan, 1}, {2}));
  EXPECT_THAT(y.grad().to_vector<float>(), ElementsAre(0, 1));
}

TEST(Elementwise, SecondDerivativeOfAChain) {
  Tensor x = full({}, 0.3, f64).set_requires_grad();
  Tensor first = grad({tanh(exp(x) * x)}, {x}, {}, true, true)[0];
  double second = grad({first}, {x})[0].item();
  auto derivative = [](double v) {
    double u = std::exp(v) * v, t = std::tanh(u);
    return (1 - t * t) * std::exp(v) * (v + 1);
  };
  EXPECT_NEAR(second, (derivative(0.3 + 1e-5) - derivative(0.3 - 1e-5)) / 2e-5, 1e-8);
}

TEST(Elementwise, ChangedSavedTensorIsRefused) {
  Tensor x = ones({2}).set_requires_grad();
  Tensor y = exp(x);
  no_grad([&] { y.fill_(3); });
  EXPECT_THROW(sum(y).backward(), Error);
}

TEST(Elementwise, ThreadsDoNotChangeResults) {
  Tensor x = sample_normal({100003}, 3).to(f32);
  expect_same_with_threads([&] { return std::pair(values(gelu_tanh(x)), values(erf(x) * x + exp(x))); });
}

TEST(Elementwise, ErrorsNameOperationAndShapes) {
  Tensor a = zeros({2, 3}), b = zeros({4});
  EXPECT_THAT(error_of([&] { a + b; }), testing::AllOf(HasSubstr("add"), HasSubstr("[2, 3]"), HasSubstr("[4]")));
  EXPECT_THAT(error_of([&] { gelu(zeros({2}, i64)); }), testing::AllOf(HasSubstr("gelu"), HasSubstr("i64")));
  EXPECT_THAT(error_of([&] { where(a, a, a); }), testing::AllOf(HasSubstr("where"), HasSubstr("f32")));
  EXPECT_THAT(error_of([&] { clamp(a, 1, 0); }), HasSubstr("clamp"));
  EXPECT_THAT(error_of([&] { swiglu(a, b); }), testing::AllOf(HasSubstr("[2, 3]"), HasSubstr("[4]")));
}

// Views that start off a 16-byte boundary, have odd rows, or repeat: the scalar path of the kernels.
TEST(Elementwise, CudaOddLayouts) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (DType t : {f64, f32, bf16}) {
    Tensor host = sample_normal({9, 35}).to(t), gpu = host.to(Device::cuda());
    auto views = [](const Tensor& x) {
      return Tensors{x.slice(1, 1, 35),
                     x.slice(1, 0, 32),
                     x.slice(1, 3, 4),
                     x.transpose(0, 1),
                     x.slice(0, 1, 9, 2),
                     x.flatten().slice(0, 1, 300),
                     x.select(0, 3).expand({4, 35}),
                     x.slice(1, 0, 35, 3)};
    };
    Tensors on_host = views(host), on_gpu = views(gpu);
    for (size_t i = 0; i < on_host.size(); ++i) {
      auto f = [](const Tensor& x) { return (x * x + 1.0) * x - relu(x); };
      auto want = f(on_host[i]).to_vector<double>(), got = f(on_gpu[i]).to_vector<double>();
      ASSERT_EQ(got.size(), want.size());
      for (size_t k = 0; k < want.size(); ++k)
        ASSERT_NEAR(got[k], want[k], (t == bf16 ? 2e-2 : 1e-6) * (1 + std::abs(want[k]))) << "view " << i;
    }
  }
}

TEST(Elementwise, CudaBeyondTwoToThe31Elements) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  int64_t n = (int64_t(1) << 31) + 24;
  Tensor x = full({n}, -1, bf16, Device::cuda());
  no_grad([&] { x.slice(0, n - 3, n).fill_(5); });
  EXPECT_THAT(relu(x).slice(0, n - 5, n).to_vector<int>(), ElementsAre(0, 0, 5, 5, 5));
  Tensor rows = x.view({8, n / 8}).slice(1, 1, n / 8);  // strided and not aligned
  EXPECT_THAT(mul(rows, 2.0).select(0, 7).slice(0, n / 8 - 5, n / 8 - 1).to_vector<int>(), ElementsAre(-2, 10, 10, 10));
}

}  // namespace
}  // namespace xylem
