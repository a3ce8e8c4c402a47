// SPDX-License-Identifier: Apache-2.0
#include "ops/quant/quant.h"

#include "core/op/op_spec.h"
#include "tests/ops/helpers.h"

namespace xylem {
namespace {

// Every finite e4m3 value, from its definition: sign, four bits of exponent (bias 7), three of mantissa; 0x7f is NaN.
std::vector<double> e4m3_values() {
  std::vector<double> all;
  for (int code = 0; code < 127; ++code) {
    int exponent = code >> 3, mantissa = code & 7;
    double v = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    all.push_back(v), all.push_back(-v);
  }
  std::sort(all.begin(), all.end());
  return all;
}

// The value of the set that is nearest to v; of two equally near ones that with the even code.
double nearest_e4m3(double v) {
  double best = 0, gap = INFINITY;
  for (int code = 0; code < 127; ++code) {
    int exponent = code >> 3, mantissa = code & 7;
    double c = std::copysign(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10), v);
    double d = std::abs(c - v);
    if (d < gap || (d == gap && code % 2 == 0)) best = c, gap = d;
  }
  return best;
}

TEST(FakeQuantize, RoundsHalvesToEvenAndClamps) {
  Tensor x = from_vector<float>({-3, -1.25f, -0.75f, -0.25f, 0, 0.25f, 0.75f, 1.25f, 1.75f, 9}, {10});
  Tensor y = fake_quantize(x, full({}, 0.5), {.low = -4, .high = 3});
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{-2, -1, -1, 0, 0, 0, 1, 1, 1.5f, 1.5f}));
}

TEST(FakeQuantize, EveryFormatAndTypeAgreesWithTheDefinition) {
  Tensor x = sample_normal({64, 33}, 40, 3);
  for (DType t : {f64, f32, f16, bf16}) {
    Tensor in = x.to(t), scale = full({}, 0.37, t == f64 ? f64 : f32);
    double s = scale.item();
    auto v = in.to_vector<double>();
    auto rounded = [&](double value) { return full({}, value, f64).to(t).item(); };
    auto whole = fake_quantize(in, scale, {.low = -127, .high = 127}).to_vector<double>();
    auto small = fake_quantize(in, scale, {.format = QuantFormat::fp8}).to_vector<double>();
    for (size_t i = 0; i < v.size(); ++i) {
      // The quotient is taken in f32 for the narrower types.
      double q = t == f64 ? v[i] / s : double(float(v[i]) / float(s));
      double integer = std::clamp(std::nearbyint(q), -127.0, 127.0);
      ASSERT_EQ(whole[i], rounded(t == f64 ? integer * s : double(float(integer) * float(s)))) << v[i] << " " << t;
      double e4m3 = nearest_e4m3(std::clamp(q, -448.0, 448.0));
      ASSERT_EQ(small[i], rounded(t == f64 ? e4m3 * s : double(float(e4m3) * float(s)))) << v[i] << " " << t;
    }
  }
}

TEST(FakeQuantize, LeavesEveryFp8ValueAlone) {
  std::vector<double> all = e4m3_values();
  Tensor x = from_vector(all, {int64_t(all.size())});
  EXPECT_EQ(all.size(), 254u);
  EXPECT_EQ(all.back(), 448);
  EXPECT_EQ(fake_quantize(x, full({}, 1, f64), {.format = QuantFormat::fp8}).to_vector<double>(), all);
  // Between neighbours the nearer one wins.
  std::vector<double> between, wanted;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    between.push_back(all[i] + 0.4 * (all[i + 1] - all[i])), wanted.push_back(all[i]);
    between.push_back(all[i] + 0.6 * (all[i + 1] - all[i])), wanted.push_back(all[i + 1]);
  }
  Tensor y =
      fake_quantize(from_vector(between, {int64_t(between.size())}), full({}, 1, f64), {.format = QuantFormat::fp8});
  EXPECT_EQ(y.to_vector<double>(), wanted);
}

TEST(FakeQuantize, ScalesOfChannelsAndBlocks) {
  Tensor x = sample_normal({3, 4, 8}, 1, 5);
  auto v = x.to_vector<double>();
  auto check = [&](const Tensor& scale, const FakeQuantizeArgs& args, auto scale_index) {
    auto y = fake_quantize(x, scale, args).to_vector<double>();
    auto s = scale.to_vector<double>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      double step = s[size_t(scale_index(i))];
      EXPECT_EQ(y[size_t(i)], std::clamp(std::nearbyint(v[size_t(i)] / step), -8.0, 7.0) * step) << i;
    }
  };
  FakeQuantizeArgs args{.low = -8, .high = 7};
  for (int axis = 0; axis < 3; ++axis) {
    args.axis = axis;
    int64_t inner = axis == 0 ? 32 : axis == 1 ? 8 : 1, size = x.size(axis);
    check(sample_uniform({size}, 0.1, 0.3, 7), args, [&](int64_t i) { return i / inner % size; });
  }
  FakeQuantizeArgs blocks{.format = QuantFormat::int4, .low = -8, .high = 7, .block = 4};
  check(sample_uniform({3, 4, 2}, 0.1, 0.3, 7), blocks, [](int64_t i) { return i / 4; });
}

TEST(FakeQuantize, GradientPassesWhereNothingWasClamped) {
  Tensor x = from_vector<double>({-5, -4.4, -4.6, 0.3, 3.4, 3.6, 8}, {7}).set_requires_grad();
  Tensor dy = from_vector<double>({1, 2, 3, 4, 5, 6, 7}, {7});
  fake_quantize(x, full({}, 1, f64), {.low = -4, .high = 3}).backward(dy);
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 2, 0, 4, 5, 0, 0}));
}

// Learned step size: between two jumps of the rounding the derivative of the rounding error is exact, and where values
// are clamped the output is scale * low or scale * high, whose derivative finite differences see.
TEST(FakeQuantize, GradientOfTheScale) {
  Tensor x = sample_normal({6, 50}, 3, 11), dy = sample_normal({6, 50}, 1, 12);
  Tensor scale = sample_uniform({6}, 0.2, 0.5, 13).set_requires_grad();
  FakeQuantizeArgs args{.axis = 0, .low = -8, .high = 7};
  fake_quantize(x, scale, args).backward(dy);
  auto v = x.to_vector<double>(), g = dy.to_vector<double>(), s = scale.to_vector<double>(),
       got = scale.grad().to_vector<double>();
  for (size_t c = 0; c < 6; ++c) {
    double want = 0;
    for (size_t i = 50 * c; i < 50 * (c + 1); ++i) {
      double q = v[i] / s[c], r = std::nearbyint(q);
      want += g[i] * (r < -8 ? -8 : r > 7 ? 7 : r - q);
    }
    EXPECT_NEAR(got[c], want / std::sqrt(50 * 7.0), 1e-12) << c;
  }
  // All clamped: the output is linear in the scale.
  Tensor high = full({4}, 100, f64), step = full({}, 0.5, f64).set_requires_grad();
  fake_quantize(high, step, {.low = -8, .high = 7}).backward(full({4}, 1, f64));
  auto at = [&](double h) { return sum(fake_quantize(high, full({}, 0.5 + h, f64), {.low = -8, .high = 7})).item(); };
  EXPECT_NEAR(step.grad().item(), (at(1e-3) - at(-1e-3)) / 2e-3 / std::sqrt(4 * 7.0), 1e-9);
}

TEST(FakeQuantize, KeepsTheMemoryOrderOfImages) {
  Tensor x = sample_normal({2, 5, 5, 8}, 1, 2).permute({0, 3, 1, 2}).set_requires_grad();
  Tensor y = fake_quantize(x, full({}, 0.1, f64));
  EXPECT_EQ(y.strides(), x.strides());
}

TEST(FakeQuantize, NamesWhatIsWrong) {
  Tensor x = zeros({2, 6});
  EXPECT_NE(error_of([&] { fake_quantize(x, ones({3}), {.axis = 1}); }).find("needs [6]"), std::string::npos);
  EXPECT_NE(error_of([&] { fake_quantize(x, ones({2, 2}), {.block = 4}); }).find("blocks of 4"), std::string::npos);
  EXPECT_NE(error_of([&] { fake_quantize(x, ones({}), {.low = 1}); }).find("low"), std::string::npos);
  EXPECT_NE(error_of([&] { fake_quantize(x, ones({}), {.axis = 2}); }).find("no dimension 2"), std::string::npos);
}

TEST(AbsMax, OfAllChannelsAndBlocks) {
  Tensor x = from_vector<double>({1, -7, 2, 3, 5, -6, 0, 0}, {2, 4});
  EXPECT_EQ(abs_max(x).to_vector<double>(), (std::vector<double>{7}));
  EXPECT_EQ(abs_max(x).rank(), 0);
  EXPECT_EQ(abs_max(x, 0).to_vector<double>(), (std::vector<double>{7, 6}));
  EXPECT_EQ(abs_max(x, 1).to_vector<double>(), (std::vector<double>{5, 7, 2, 3}));
  EXPECT_EQ(abs_max(x, -1, 2).to_vector<double>(), (std::vector<double>{7, 3, 6, 0}));
  EXPECT_EQ(abs_max(x.flatten(), 0).to_vector<double>(), (std::vector<double>{1, 7, 2, 3, 5, 6, 0, 0}));
  EXPECT_EQ(abs_max(x.to(bf16)).dtype(), f32);
}

TEST(AbsHistogram, CountsEveryValueOnce) {
  for (Device device : test_devices()) {
    Tensor x = sample_normal({1000, 150}, 1, 8).to(f32);
    auto got = abs_histogram(x.to(device), 2, 64).to_vector<int64_t>();
    std::vector<int64_t> want(64);
    for (double v : x.to_vector<double>()) ++want[size_t(std::min(63.0, std::floor(std::abs(v) * 32)))];
    EXPECT_EQ(got, want);
    Tensor odd = from_vector<float>({NAN, -INFINITY, INFINITY, 0.f, 2.f}, {5});
    EXPECT_EQ(abs_histogram(odd.to(device), 2, 2).to_vector<int64_t>(), (std::vector<int64_t>{1, 3}));
  }
}

}  // namespace
}  // namespace xylem
