// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <limits>

#include "tests/ops/helpers.h"

namespace xylem {
namespace {

using testing::HasSubstr;

Tensor scalar(double v, DType dtype, Device device) { return full({1}, v, dtype, device); }

// torch.optim.AdamW, one element at a time in f64.
struct AdamWReference {
  std::vector<double> p, m, v;
  void step(const std::vector<double>& g, int64_t t, const AdamWArgs& a) {
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] -= a.lr * a.weight_decay * p[i];
      m[i] = a.beta1 * m[i] + (1 - a.beta1) * g[i];
      v[i] = a.beta2 * v[i] + (1 - a.beta2) * g[i] * g[i];
      const double m_hat = m[i] / (1 - std::pow(a.beta1, double(t))), v_hat = v[i] / (1 - std::pow(a.beta2, double(t)));
      p[i] -= a.lr * m_hat / (std::sqrt(v_hat) + a.eps);
    }
  }
};

TEST(AdamW, FollowsTheFormula) {
  const AdamWArgs args{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
  for (Device device : test_devices())
    for (DType dtype : {f32, f64, bf16, f16})
      for (bool own_type : {false, true})
        for (int64_t n : {1, 3, 1000, 70001}) {
          const bool half = is_half(dtype);
          const DType type = dtype == f64 ? f64 : f32;
          Tensor param = sample_normal({n}).to(dtype).to(device), master = half ? param.to(f32).clone() : Tensor();
          Tensor m = zeros({n}, type, device), v = zeros({n}, type, device);
          AdamWReference want{param.to_vector<double>(), std::vector<double>(n), std::vector<double>(n)};
          for (int64_t t = 1; t <= 4; ++t) {
            Tensor grad = sample_normal({n}, 1, 10 + t).to(own_type ? dtype : type).to(device);
            const uint32_t before = param.version();
            adamw_step(param, master, grad, m, v, scalar(args.lr, f32, device), scalar(double(t), i64, device), args,
                       scalar(0.5, f32, device));
            EXPECT_GT(param.version(), before);
            std::vector<double> g = grad.to_vector<double>();
            for (double& x : g) x *= 0.5;
            want.step(g, t, args);
          }
          const Tensor& exact = half ? master : param;
          EXPECT_LE(distance(exact.to_vector<double>(), want.p), dtype == f64 ? 1e-8 : 2e-6) << device << dtype << n;
          EXPECT_LE(distance(m.to_vector<double>(), want.m), 1e-6);
          EXPECT_LE(distance(v.to_vector<double>(), want.v), 1e-6);
          if (half) {
            EXPECT_EQ(param.to_vector<double>(), master.to(dtype).to_vector<double>());
          }
        }
}

// In bf16 alone an update of 1e-5 on a weight of 1 rounds to nothing; the master copy keeps it.
TEST(AdamW, SmallStepsMoveSixteenBitParameters) {
  for (Device device : test_devices()) {
    Tensor param = ones({8}, bf16, device), master = ones({8}, f32, device), m = zeros({8}, f32, device),
           v = zeros({8}, f32, device);
    Tensor grad = ones({8}, f32, device), lr = scalar(1e-5, f32, device);
    for (int t = 1; t <= 1000; ++t)
      adamw_step(param, master, grad, m, v, lr, scalar(t, i64, device), {.weight_decay = 0});
    EXPECT_NEAR(master.to_vector<float>()[0], 0.99, 1e-4);
    EXPECT_NEAR(param.to_vector<float>()[0], 0.99, 4e-3);
  }
}

TEST(AdamW, SkipLeavesEverythingAsItWas) {
  for (Device device : test_devices()) {
    Tensor p = ones({5}, f32, device), m = ones({5}, f32, device), v = ones({5}, f32, device);
    Tensor bad = full({5}, std::numeric_limits<double>::quiet_NaN(), f32, device);
    auto step = [&](int skip) {
      adamw_step(p, {}, bad, m, v, scalar(0.1, f32, device), scalar(1, i64, device), {}, {}, scalar(skip, i32, device));
    };
    step(1);
    for (const Tensor& t : {p, m, v}) EXPECT_EQ(t.to_vector<float>(), std::vector<float>(5, 1));
    step(0);
    EXPECT_TRUE(std::isnan(p.to_vector<float>()[0]));
  }
}

TEST(Sgd, FollowsTheFormula) {
  for (Device device : test_devices())
    for (DType dtype : {f32, f64, bf16})
      for (auto [momentum, nesterov] : {std::pair(0.0, false), {0.9, false}, {0.9, true}}) {
        const SgdArgs args{.momentum = momentum, .weight_decay = 0.05, .nesterov = nesterov};
        const int64_t n = 1003;
        const DType type = dtype == f64 ? f64 : f32;
        Tensor param = sample_normal({n}).to(dtype).to(device),
               master = dtype == bf16 ? param.to(f32).clone() : Tensor();
        Tensor buffer = zeros({n}, type, device);
        std::vector<double> p = param.to_vector<double>(), b(n);
        for (int t = 0; t < 3; ++t) {
          Tensor grad = sample_normal({n}, 1, 20 + t).to(type).to(device);
          sgd_step(param, master, grad, buffer, scalar(0.1, f32, device), args);
          auto g = grad.to_vector<double>();
          for (int64_t i = 0; i < n; ++i) {
            double d = g[i] + 0.05 * p[i];
            if (momentum > 0) {
              b[i] = t == 0 ? d : momentum * b[i] + d;
              d = nesterov ? d + momentum * b[i] : b[i];
            }
            p[i] -= double(0.1f) * d;
          }
        }
        EXPECT_LE(distance((master.defined() ? master : param).to_vector<double>(), p), dtype == f64 ? 1e-12 : 2e-6);
      }
}

// Algorithm 2 of the paper, one element at a time in f64.
TEST(Lion, FollowsTheFormula) {
  for (Device device : test_devices())
    for (DType dtype : {f32, f64, bf16, f16})
      for (int64_t n : {1, 3, 1003, 70001}) {
        const LionArgs args{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.5};
        const DType type = dtype == f64 ? f64 : f32;
        const double lr = 0.0625;  // exact in every type
        Tensor param = sample_normal({n}).to(dtype).to(device),
               master = is_half(dtype) ? param.to(f32).clone() : Tensor(), m = zeros({n}, type, device);
        std::vector<double> p = param.to_vector<double>(), mean(n);
        for (int t = 0; t < 4; ++t) {
          Tensor grad = sample_normal({n}, 1, 30 + t).to(type).to(device);
          lion_step(param, master, grad, m, scalar(lr, f32, device), args, scalar(2, f32, device));
          auto g = grad.to_vector<double>();
          for (int64_t i = 0; i < n; ++i) {
            const double c = args.beta1 * mean[i] + (1 - args.beta1) * 2 * g[i];
            p[i] -= lr * ((c > 0) - (c < 0) + args.weight_decay * p[i]);
            mean[i] = args.beta2 * mean[i] + (1 - args.beta2) * 2 * g[i];
          }
        }
        EXPECT_LE(distance((master.defined() ? master : param).to_vector<double>(), p), dtype == f64 ? 1e-12 : 2e-6)
            << device << dtype << n;
        EXPECT_LE(distance(m.to_vector<double>(), mean), 1e-6);
      }
}

TEST(Lion, SkipsAndShowsNaN) {
  for (Device device : test_devices()) {
    Tensor p = ones({5}, f32, device), m = zeros({5}, f32, device), lr = scalar(0.5, f32, device);
    Tensor bad = full({5}, std::numeric_limits<double>::quiet_NaN(), f32, device);
    lion_step(p, {}, bad, m, lr, {}, {}, scalar(1, i32, device));
    EXPECT_EQ(p.to_vector<float>(), std::vector<float>(5, 1));
    lion_step(p, {}, zeros({5}, f32, device), m, lr, {.weight_decay = 0});  // no direction: no step
    EXPECT_EQ(p.to_vector<float>(), std::vector<float>(5, 1));
    lion_step(p, {}, bad, m, lr, {});
    EXPECT_TRUE(std::isnan(p.to_vector<float>()[0]));
  }
}

TEST(SumOfSquares, MatchesF64AndShowsInfinities) {
  for (Device device : test_devices()) {
    Tensor a = sample_normal({70001}, 1000).to(f32).to(device), b = sample_normal({3, 5}).to(bf16).to(device);
    Tensor c = sample_normal({200}).to(f64).to(device), none = zeros({0}, f32, device);
    double want = 0;
    for (const Tensor& t : {a, b, c})
      for (double x : t.to_vector<double>()) want += x * x;
    EXPECT_NEAR(sum_of_squares({a, b, none, c}).item() / want, 1, 1e-6) << device;
    // Unaligned, strided.
    Tensor part = a.slice(0, 1, 1001), every = a.slice(0, 0, 2000, 2);
    double part_want = 0, every_want = 0;
    for (double x : part.to_vector<double>()) part_want += x * x;
    for (double x : every.to_vector<double>()) every_want += x * x;
    EXPECT_NEAR(sum_of_squares({part}).item() / part_want, 1, 1e-6);
    EXPECT_NEAR(sum_of_squares({every}).item() / every_want, 1, 1e-6);
    a.select(0, 7).fill_(std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isinf(sum_of_squares({a, b}).item()));
    // 65504^2 a million times does not fit f16 but is a fine norm.
    EXPECT_NEAR(sum_of_squares({full({1000000}, 65504, f16, device)}).item() / (65504.0 * 65504.0 * 1e6), 1, 1e-6);
  }
}

TEST(Ema, Averages) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16}) {
      Tensor average = full({1001}, 2, dtype, device), value = full({1001}, 6, f32, device);
      ema_update(average, value, 0.75);
      EXPECT_EQ(average.to_vector<float>(), std::vector<float>(1001, 3));
    }
}

TEST(OptimizerKernels, RefuseWhatDoesNotFit) {
  Tensor p = ones({4}), g = ones({4}), m = zeros({4}), lr = scalar(0.1, f32, {}), step = scalar(1, i64, {});
  EXPECT_THAT(error_of([&] { adamw_step(p, {}, ones({5}), m, m, lr, step, {}); }),
              AllOf(HasSubstr("adamw_step"), HasSubstr("[5]")));
  EXPECT_THAT(error_of([&] { adamw_step(p, ones({4}), g, m, m, lr, step, {}); }), HasSubstr("master"));
  EXPECT_THAT(error_of([&] { adamw_step(p, {}, g, m.to(bf16), m, lr, step, {}); }), HasSubstr("bf16"));
  EXPECT_THAT(error_of([&] { adamw_step(p, {}, g, m, m, lr, scalar(1, f32, {}), {}); }), HasSubstr("step"));
  EXPECT_THAT(error_of([&] { sgd_step(p, {}, g, {}, lr, {.momentum = 0.9}); }), HasSubstr("momentum"));
  EXPECT_THAT(error_of([&] { sum_of_squares({}); }), HasSubstr("at least one"));
}

}  // namespace
}  // namespace xylem
