// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/ops/helpers.h"

namespace xylem {
namespace {

using testing::HasSubstr;

struct RowGrads {
  std::vector<double> y, dx, dgain, dbias;
};

// Layer norm (or RMS norm) and its gradients for dy, spelt out in f64.
RowGrads expected_rows(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& dy, bool center) {
  const int64_t cols = x.size(-1), rows = x.numel() / cols;
  auto xs = x.to_vector<double>(), g = gain.to_vector<double>(), b = bias.to_vector<double>(),
       d = dy.to_vector<double>();
  RowGrads r{std::vector<double>(xs.size()), std::vector<double>(xs.size()), std::vector<double>(cols),
             std::vector<double>(cols)};
  for (int64_t i = 0; i < rows; ++i) {
    const double *xr = &xs[i * cols], *dr = &d[i * cols];
    double mean = 0, var = 0, one = 0, along = 0;
    if (center)
      for (int64_t c = 0; c < cols; ++c) mean += xr[c] / double(cols);
    for (int64_t c = 0; c < cols; ++c) var += (xr[c] - mean) * (xr[c] - mean) / double(cols);
    const double s = 1 / std::sqrt(var + 1e-5);
    for (int64_t c = 0; c < cols; ++c) {
      const double h = (xr[c] - mean) * s;
      r.y[i * cols + c] = h * g[c] + b[c];
      r.dgain[c] += dr[c] * h;
      r.dbias[c] += dr[c];
      if (center) one += dr[c] * g[c] / double(cols);
      along += dr[c] * g[c] * h / double(cols);
    }
    for (int64_t c = 0; c < cols; ++c) r.dx[i * cols + c] = s * (dr[c] * g[c] - one - (xr[c] - mean) * s * along);
  }
  return r;
}

// Widths that take every kernel: a warp's registers, a block's registers, neither; odd and even.
TEST(RowNorm, EveryWidth) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16, f16, f64})
      for (int64_t cols : {2, 7, 8, 64, 100, 257, 768, 1000, 1024, 1600, 2048, 3000, 4096, 8192, 8200, 10001})
        for (bool center : {true, false}) {
          const int64_t rows = cols > 2000 ? 5 : 9;
          Tensor x = sample_normal({rows, cols}).to(dtype).to(device),
                 dy = sample_normal({rows, cols}, 1, 2).to(dtype).to(device);
          const DType type = dtype == f64 ? f64 : f32;
          Tensor gain = sample_uniform({cols}, 0.5, 1.5, 3).to(type).to(device),
                 bias = sample_uniform({cols}, -1, 1, 4).to(type).to(device);
          if (!center) bias = zeros({cols}, type, device);
          RowGrads want = expected_rows(x, gain, bias, dy, center);
          for (const Tensor& t : {x, gain, bias}) t.set_requires_grad();
          Tensor y = center ? layer_norm(x, gain, bias) : rms_norm(x, gain);
          y.backward(dy);
          const double limit = tolerance_of(dtype);
          const std::string what = device.str() + " " + name_of(dtype) + " " + std::to_string(cols);
          EXPECT_LE(distance(y.to_vector<double>(), want.y), limit) << what;
          EXPECT_LE(distance(x.grad().to_vector<double>(), want.dx), limit) << what;
          EXPECT_LE(distance(gain.grad().to_vector<double>(), want.dgain), limit) << what;
          if (center) {
            EXPECT_LE(distance(bias.grad().to_vector<double>(), want.dbias), limit) << what;
          }
        }
}

// The mean is held in f32, so 6e-5 / 0.01 is what can be had; E[x^2] - E[x]^2 would miss by far more than the result.
TEST(RowNorm, SmallSpreadAroundALargeMean) {
  for (Device device : test_devices()) {
    Tensor x = (sample_normal({4, 512}, 0.01) + 1000.0).to(f32).to(device);
    EXPECT_LE(distance(layer_norm(x, {}, {}, 1e-12), layer_norm(x.to(f64), {}, {}, 1e-12)), 2e-2);
  }
}

TEST(RowNorm, FusedAdditionEqualsTheTwoSteps) {
  for (Device device : test_devices()) {
    auto leaf = [&](const Shape& s, uint64_t seed) {
      return sample_normal(s, 1, seed).to(f32).to(device).set_requires_grad();
    };
    Tensor x = leaf({6, 96}, 1), r = leaf({6, 96}, 2), gain = leaf({96}, 3), bias = leaf({96}, 4);
    Tensor dh = sample_normal({6, 96}, 1, 5).to(f32).to(device), dy = sample_normal({6, 96}, 1, 6).to(f32).to(device);
    auto [h, y] = add_layer_norm(x, r, gain, bias);
    Tensors fused = grad({h, y}, {x, r, gain, bias}, {dh, dy});
    Tensor sum = x + r, plain = layer_norm(sum, gain, bias);
    Tensors apart = grad({sum, plain}, {x, r, gain, bias}, {dh, dy});
    EXPECT_EQ(h.to_vector<float>(), sum.to_vector<float>());
    EXPECT_LE(distance(y, plain), 1e-6);
    for (size_t i = 0; i < fused.size(); ++i) EXPECT_LE(distance(fused[i], apart[i]), 1e-5) << i;
    // Only one of the two results used.
    EXPECT_LE(distance(grad({add_layer_norm(x, r, gain, bias).first}, {r}, {dh})[0], dh), 0);
    EXPECT_LE(
        distance(grad({add_rms_norm(x, r, gain).second}, {x}, {dy})[0], grad({rms_norm(x + r, gain)}, {x}, {dy})[0]),
        1e-5);
  }
}

TEST(RowNorm, GradientsGoStraightIntoTheLeavesBuffers) {
  for (Device device : test_devices()) {
    Tensor x = sample_normal({5, 64}).to(bf16).to(device), gain = ones({64}, bf16, device),
           bias = zeros({64}, bf16, device);
    for (const Tensor& t : {gain, bias}) {
      t.set_requires_grad();
      t.set_grad(zeros({64}, f32, device));
      t.zero_grad();
    }
    void* buffer = gain.grad().raw();
    layer_norm(x, gain, bias).backward(ones({5, 64}, bf16, device));
    std::vector<double> once = gain.grad().to_vector<double>();
    layer_norm(x, gain, bias).backward(ones({5, 64}, bf16, device));
    EXPECT_EQ(gain.grad().raw(), buffer);
    EXPECT_EQ(gain.grad().dtype(), f32);
    for (double& v : once) v *= 2;
    EXPECT_LE(distance(gain.grad().to_vector<double>(), once), 1e-6);
    EXPECT_EQ(bias.grad().to_vector<double>(), std::vector<double>(64, 10));
  }
}

TEST(RowNorm, SecondDerivativesOfTheParametersAlone) {
  Tensor x = sample_normal({3, 8}), residual = sample_normal({3, 8}, 1, 2), weights = sample_normal({3, 8}, 1, 3);
  Tensor gain = sample_uniform({8}, 0.5, 1.5, 4).set_requires_grad();
  Tensor bias = sample_uniform({8}, -1, 1, 5).set_requires_grad();
  auto second = [&](const Tensor& h, const Tensor& y) {
    Tensor g = grad({sum(y * y * weights) + sum(h)}, {gain}, {}, true, true)[0];
    return values(grad({sum(g * g)}, {gain})[0]);
  };
  auto [h, y] = add_layer_norm(x, residual, gain, bias);
  Tensor normed = layer_norm(x + residual, Tensor(), Tensor());
  expect_near(second(h, y), second(x + residual, normed * gain + bias), 1e-9);
}

TEST(RowNorm, SixteenBitParametersGetGradientsInTheirType) {
  Tensor x = sample_normal({5, 64}).to(f32), gain = ones({64}, bf16).set_requires_grad();
  rms_norm(x, gain).backward(ones({5, 64}));
  EXPECT_EQ(gain.grad().dtype(), bf16);
}

TEST(RowNorm, Errors) {
  Tensor x = zeros({2, 8});
  EXPECT_THAT(error_of([&] { layer_norm(x, ones({7}), {}); }),
              AllOf(HasSubstr("layer_norm"), HasSubstr("[7]"), HasSubstr("[2, 8]")));
  EXPECT_THAT(error_of([&] { add_rms_norm(x, zeros({2, 9}), ones({8})); }), HasSubstr("[2, 9]"));
  EXPECT_THAT(error_of([&] { rms_norm(zeros({2, 8}, i64), ones({8})); }), HasSubstr("i64"));
}

// ---- batch and group norm
// ----------------------------------------------------------------------------------------------

Tensor channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

struct ChannelStats {
  std::vector<double> mean, var;  // biased
};
ChannelStats stats_of(const Tensor& x) {
  const int64_t channels = x.size(1);
  ChannelStats s{std::vector<double>(channels), std::vector<double>(channels)};
  for (int64_t c = 0; c < channels; ++c) {
    auto v = x.select(1, c).to_vector<double>();
    for (double e : v) s.mean[c] += e / double(v.size());
    for (double e : v) s.var[c] += (e - s.mean[c]) * (e - s.mean[c]) / double(v.size());
  }
  return s;
}

TEST(BatchNorm, SmallSpreadAroundALargeMeanInBothMemoryOrders) {
  for (Device device : test_devices())
    for (bool last : {false, true}) {
      Tensor x = (sample_normal({16, 24, 13, 12}, 0.01) + 1000.0).to(f32).to(device);
      if (last) x = channels_last(x);
      ChannelStats want = stats_of(x);
      Tensor mean = zeros({24}, f32, device), var = ones({24}, f32, device);
      Tensor y = batch_norm(x, {}, {}, mean, var, true, 0.1, 0);
      EXPECT_EQ(y.strides(), x.strides());
      const double n = 16 * 13 * 12;
      auto xs = x.to_vector<double>(), ys = y.to_vector<double>(), vs = var.to_vector<double>(),
           ms = mean.to_vector<double>();
      for (int64_t c = 0; c < 24; ++c) {
        EXPECT_NEAR(ms[c], 0.1 * want.mean[c], 1e-4);
        EXPECT_NEAR(vs[c], 0.9 + 0.1 * want.var[c] * n / (n - 1), 1e-6);
      }
      double worst = 0;
      for (size_t i = 0; i < xs.size(); ++i) {
        const size_t c = i / (13 * 12) % 24;
        worst = std::max(worst, std::abs(ys[i] - (xs[i] - want.mean[c]) / std::sqrt(want.var[c])));
      }
      EXPECT_LE(worst, 1e-2) << device
                             << (last ? " channels last" : "");  // the mean itself is only good to 6e-5 / 1e-2
    }
}

TEST(BatchNorm, OrdersAndTypesAgree) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16, f16, f64})
      for (Shape shape :
           {Shape{4, 64, 7, 7}, Shape{2, 3, 32, 32}, Shape{3, 5, 3, 3}, Shape{64, 8, 4, 4}, Shape{2, 300, 2, 4}})
        for (bool training : {true, false}) {
          Tensor x = sample_normal(shape).to(dtype), dy = sample_normal(shape, 1, 2).to(dtype);
          Tensor gain = sample_uniform({shape[1]}, 0.5, 1.5, 3), bias = sample_uniform({shape[1]}, -1, 1, 4);
          auto run = [&](Tensor in, Tensor out_grad, bool last) {
            if (last) in = channels_last(in), out_grad = channels_last(out_grad);
            Tensor g = gain.to(in.dtype() == f64 ? f64 : f32).to(in.device()).clone().set_requires_grad();
            Tensor b = bias.to(g.dtype()).to(in.device()).clone().set_requires_grad();
            in = in.detach().set_requires_grad();
            Tensor y = batch_norm(in, g, b, full({shape[1]}, 0.1, f32, in.device()),
                                  full({shape[1]}, 1.2, f32, in.device()), training);
            y.backward(out_grad);
            return Tensors{y.detach(), in.grad(), g.grad(), b.grad()};
          };
          Tensors want = run(x.to(f64), dy.to(f64), false);
          for (bool last : {false, true}) {
            Tensors got = run(x.to(device), dy.to(device), last);
            for (size_t i = 0; i < got.size(); ++i)
              EXPECT_LE(distance(got[i], want[i]), tolerance_of(dtype))
                  << device << " " << dtype << " " << shape << last << " " << i;
          }
        }
}

TEST(BatchNorm, EvaluationUsesTheRunningStatistics) {
  Tensor mean = from_vector<float>({1, -1}, {2}), var = from_vector<float>({4, 0.25}, {2});
  Tensor y = batch_norm(full({1, 2, 1, 2}, 3), {}, {}, mean, var, false, 0.1, 0);
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{1, 1, 8, 8}));
  EXPECT_EQ(mean.to_vector<float>(), (std::vector<float>{1, -1}));
}

TEST(BatchNorm, Errors) {
  EXPECT_THAT(error_of([&] {
                batch_norm(zeros({1, 3, 1, 1}), {}, {}, {}, {}, true);
              }),
              HasSubstr("more than one value"));
  EXPECT_THAT(error_of([&] {
                batch_norm(zeros({2, 3, 4, 4}), ones({4}), {}, {}, {}, true);
              }),
              AllOf(HasSubstr("[4]"), HasSubstr("[2, 3, 4, 4]")));
  EXPECT_THAT(error_of([&] { batch_norm(zeros({2, 3}), {}, {}, {}, {}, false); }), HasSubstr("running"));
  EXPECT_THAT(error_of([&] { group_norm(zeros({2, 6, 4}), 4, {}, {}); }), HasSubstr("6 channels"));
}

TEST(GroupNorm, EqualsLayerNormOfItsGroups) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16}) {
      Tensor x = (sample_normal({3, 8, 5, 6}) + 3.0).to(dtype).to(device);
      Tensor rows = layer_norm(x.reshape({3 * 2, 4 * 30}), {}, {}).reshape(x.shape());
      EXPECT_LE(distance(group_norm(x, 2, {}, {}), rows), tolerance_of(dtype)) << device;
    }
}

}  // namespace
}  // namespace xylem
