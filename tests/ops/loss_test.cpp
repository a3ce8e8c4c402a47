// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/loss.h"

#include <gmock/gmock.h>

#include "tests/ops/helpers.h"

namespace xylem {
namespace {

using testing::HasSubstr;

struct Expected {
  double loss = 0;
  std::vector<double> dlogits;
};

Expected expected(const Tensor& logits, const std::vector<int64_t>& targets, const CrossEntropyArgs& args) {
  const int64_t classes = logits.size(-1), rows = int64_t(targets.size());
  auto x = logits.to_vector<double>();
  Expected e;
  e.dlogits.resize(x.size());
  int64_t count = 0;
  for (int64_t t : targets) count += t != args.ignore_index;
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] == args.ignore_index) continue;
    const double* row = &x[r * classes];
    double top = *std::max_element(row, row + classes), sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - top);
    for (int64_t c = 0; c < classes; ++c) {
      const double log_p = row[c] - top - std::log(sum);
      const double weight = (c == targets[r] ? 1 - args.label_smoothing : 0) + args.label_smoothing / double(classes);
      e.loss -= weight * log_p / double(count);
      e.dlogits[r * classes + c] = (std::exp(log_p) - weight) / double(count);
    }
  }
  return e;
}

TEST(CrossEntropy, EveryWidthAndType) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16, f16, f64})
      for (int64_t classes : {1, 2, 10, 255, 1000, 1025, 4099, 50257})
        for (double smoothing : {0.0, 0.1}) {
          Tensor logits = sample_normal({3, classes}, 4).to(dtype).to(device).set_requires_grad();
          std::vector<int64_t> targets = {classes - 1, -100, classes / 2};
          CrossEntropyArgs args{.label_smoothing = smoothing};
          Expected want = expected(logits.detach(), targets, args);
          Tensor loss = cross_entropy(logits, from_vector(targets, {3}, device), args);
          loss.backward();
          const std::string what = device.str() + " " + name_of(dtype) + " " + std::to_string(classes);
          EXPECT_NEAR(loss.item(), want.loss, (dtype == f64 ? 1e-12 : 1e-5) * (1 + want.loss)) << what;
          EXPECT_LE(distance(logits.grad().to_vector<double>(), want.dlogits), tolerance_of(dtype)) << what;
        }
}

TEST(CrossEntropy, UnalignedRows) {
  for (Device device : test_devices()) {
    Tensor wide = sample_normal({7 * 33 + 5}, 2).to(bf16).to(device);
    for (int64_t offset : {1, 3, 5}) {
      Tensor logits = wide.slice(0, offset, offset + 7 * 33).view({7, 33}).detach().set_requires_grad();
      std::vector<int64_t> targets = {0, 32, 5, 6, 7, 8, 31};
      Tensor loss = cross_entropy(logits, from_vector(targets, {7}, device));
      loss.backward();
      Expected want = expected(logits.detach(), targets, {});
      EXPECT_NEAR(loss.item(), want.loss, 1e-5);
      EXPECT_LE(distance(logits.grad().to_vector<double>(), want.dlogits), 3e-3);
    }
  }
}

TEST(CrossEntropy, AllIgnoredGivesZeroAndNoGradient) {
  for (Device device : test_devices()) {
    Tensor logits = sample_normal({4, 6}).to(f32).to(device).set_requires_grad();
    Tensor loss = cross_entropy(logits, full({4}, -1, i64, device), {.ignore_index = -1});
    loss.backward();
    EXPECT_EQ(loss.item(), 0);
    EXPECT_EQ(logits.grad().to_vector<double>(), std::vector<double>(24, 0));
  }
}

TEST(CrossEntropy, LargeAndInfiniteLogits) {
  for (Device device : test_devices()) {
    const float inf = std::numeric_limits<float>::infinity();
    Tensor logits = from_vector<float>({1e4f, -1e4f, 0, -inf, 2, -inf}, {2, 3}, device).set_requires_grad();
    Tensor loss = cross_entropy(logits, from_vector<int64_t>({1, 1}, {2}, device));
    EXPECT_NEAR(loss.item(), 1e4, 1);  // (2e4 + 0) / 2
    loss.backward();
    EXPECT_EQ(logits.grad().to_vector<float>(), (std::vector<float>{0.5f, -0.5f, 0, 0, 0, 0}));
  }
}

TEST(CrossEntropy, BadTargetIsNamed) {
  for (Device device : test_devices())
    for (int64_t bad : {5, -3}) {
      auto use = [&] { cross_entropy(zeros({2, 5}, f32, device), from_vector<int64_t>({0, bad}, {2}, device)).item(); };
      EXPECT_THAT(error_of(use),
                  AllOf(HasSubstr("cross_entropy: target " + std::to_string(bad)), HasSubstr("5 classes")));
    }
  EXPECT_THAT(error_of([] {
                cross_entropy(zeros({2, 5}), zeros({3}, i64));
              }),
              AllOf(HasSubstr("[3]"), HasSubstr("[2, 5]")));
  EXPECT_THAT(error_of([] { cross_entropy(zeros({2, 5}), zeros({2})); }), HasSubstr("f32"));
}

// More than 2^31 logits, the shape of a GPT-2 step.
TEST(CrossEntropy, MoreLogitsThanAnIntCounts) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const Device gpu = Device::cuda();
  const int64_t rows = 65536, classes = 50304;
  Tensor logits = empty({rows, classes}, bf16, gpu);
  logits.fill_(1);
  logits.select(0, rows - 1).select(0, classes - 1).fill_(3);
  logits.set_requires_grad();
  Tensor targets = full({rows}, -100, i64, gpu);
  targets.select(0, rows - 1).fill_(double(classes - 1));
  Tensor loss = cross_entropy(logits, targets);
  const double p = std::exp(2.0) / (std::exp(2.0) + double(classes - 1));
  EXPECT_NEAR(loss.item(), -std::log(p), 1e-4);
  loss.backward();
  EXPECT_NEAR(logits.grad().select(0, rows - 1).select(0, classes - 1).item(), p - 1, 1e-2);
  EXPECT_EQ(logits.grad().select(0, rows - 2).select(0, 0).item(), 0);
}

TEST(CrossEntropy, SumOverTheTargetsThatCount) {
  for (Device device : test_devices())
    for (int64_t classes : {7, 3000}) {
      Tensor logits = sample_normal({5, classes}, 2).to(f32).to(device).set_requires_grad();
      std::vector<int64_t> targets = {0, -100, 3, classes - 1, -100};
      Expected mean = expected(logits.detach(), targets, {});
      Tensor loss = cross_entropy(logits, from_vector(targets, {5}, device), {.reduction = LossReduction::sum});
      loss.backward();
      EXPECT_NEAR(loss.item(), 3 * mean.loss, 1e-4);
      for (double& d : mean.dlogits) d *= 3;
      EXPECT_LE(distance(logits.grad().to_vector<double>(), mean.dlogits), 1e-5) << device;
    }
}

struct HeadGradients {
  double loss;
  std::vector<double> hidden, weight;
};
// f gets hidden [6, 16], weight [classes, 16] and targets, of which one is ignored.
template <class F>
HeadGradients head_gradients(DType dtype, Device device, int64_t classes, bool f32_buffer, F&& f) {
  Tensor hidden = sample_normal({2, 3, 16}, 1, 1).to(dtype).to(device).set_requires_grad();
  Tensor weight = sample_normal({classes, 16}, 0.5, 2).to(dtype).to(device).set_requires_grad();
  if (f32_buffer) {  // with something in it already
    weight.set_grad(ones({classes, 16}, f32, device));
  }
  Tensor targets = from_vector<int64_t>({0, classes - 1, -100, 1, 2, classes / 2}, {2, 3}, device);
  Tensor loss = f(hidden, weight, targets);
  (loss * 3.0).backward();
  return {loss.item(), hidden.grad().to_vector<double>(), weight.grad().to_vector<double>()};
}

TEST(LinearCrossEntropy, EqualsTheTwoOperations) {
  for (Device device : test_devices())
    for (DType dtype : {f64, f32, f16, bf16})
      for (int64_t classes : {7, 1500})
        for (int64_t held : {int64_t(1), classes * 2 * int64_t(size_of(dtype)), int64_t(1) << 30})  // 1, 2, all rows
          for (bool buffer : {false, true})
            for (const CrossEntropyArgs& args :
                 {CrossEntropyArgs{}, CrossEntropyArgs{.label_smoothing = 0.1, .reduction = LossReduction::sum}}) {
              if (buffer && dtype == f64) continue;
              HeadGradients got = head_gradients(dtype, device, classes, buffer, [&](auto& h, auto& w, auto& t) {
                return linear_cross_entropy_within(h, w, t, args, held);
              });
              HeadGradients want = head_gradients(f64, Device::cpu(), classes, false, [&](auto& h, auto& w, auto& t) {
                return cross_entropy(linear(h.to(dtype).to(f64), w.to(dtype).to(f64)), t, args);
              });
              if (buffer)
                for (double& d : want.weight) d += 1;
              const std::string what = detail::concat(device, " ", dtype, " ", classes, " ", held, " ", buffer);
              EXPECT_NEAR(got.loss, want.loss, tolerance_of(dtype) * (1 + want.loss)) << what;
              EXPECT_LE(distance(got.hidden, want.hidden), 2 * tolerance_of(dtype)) << what;
              EXPECT_LE(distance(got.weight, want.weight), 2 * tolerance_of(dtype)) << what;
            }
}

TEST(LinearCrossEntropy, CanBeDifferentiatedTwiceWhenTheGraphIsKept) {
  Tensor hidden = sample_normal({4, 8}).set_requires_grad(), weight = sample_normal({5, 8}, 1, 2).set_requires_grad();
  Tensor loss = linear_cross_entropy(hidden, weight, sample_index({4}, 5));
  loss.backward({}, true);
  auto once = hidden.grad().to_vector<double>(), once_weight = weight.grad().to_vector<double>();
  hidden.zero_grad(), weight.zero_grad();
  loss.backward();
  EXPECT_EQ(hidden.grad().to_vector<double>(), once);
  EXPECT_EQ(weight.grad().to_vector<double>(), once_weight);
}

TEST(LinearCrossEntropy, AllIgnoredGivesZeroAndNoGradient) {
  for (Device device : test_devices()) {
    Tensor hidden = sample_normal({4, 8}).to(f32).to(device).set_requires_grad();
    Tensor weight = sample_normal({6, 8}).to(f32).to(device).set_requires_grad();
    Tensor loss = linear_cross_entropy(hidden, weight, full({4}, -100, i64, device));
    loss.backward();
    EXPECT_EQ(loss.item(), 0);
    EXPECT_EQ(hidden.grad().to_vector<double>(), std::vector<double>(32, 0));
    EXPECT_EQ(weight.grad().to_vector<double>(), std::vector<double>(48, 0));
  }
}

TEST(LinearCrossEntropy, Errors) {
  Tensor hidden = zeros({2, 8}), weight = zeros({5, 8});
  EXPECT_THAT(error_of([&] { linear_cross_entropy(hidden, zeros({5, 7}), zeros({2}, i64)); }), HasSubstr("[5, 7]"));
  EXPECT_THAT(error_of([&] { linear_cross_entropy(hidden, weight, zeros({3}, i64)); }), HasSubstr("[3]"));
  EXPECT_THAT(error_of([&] { linear_cross_entropy(hidden, weight, full({2}, 5, i64)); }), HasSubstr("target 5"));
}

TEST(MseLoss, ValueAndGradients) {
  for (Device device : test_devices())
    for (DType dtype : {f32, bf16, f64}) {
      Tensor x = from_vector<float>({1, 2, 3, 4}, {2, 2}).to(dtype).to(device).set_requires_grad();
      Tensor t = from_vector<float>({1, 0, 5, 1}, {2, 2}).to(dtype).to(device).set_requires_grad();
      Tensor loss = mse_loss(x, t);
      EXPECT_EQ(loss.dtype(), dtype == f64 ? f64 : f32);
      EXPECT_NEAR(loss.item(), (0 + 4 + 4 + 9) / 4.0, 1e-6);
      loss.backward();
      EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 1, -1, 1.5}));
      EXPECT_EQ(t.grad().to_vector<double>(), (std::vector<double>{0, -1, 1, -1.5}));
    }
  EXPECT_THAT(error_of([] { mse_loss(zeros({2}), zeros({3})); }), AllOf(HasSubstr("[2]"), HasSubstr("[3]")));
  EXPECT_THAT(error_of([] { mse_loss(zeros({0}), zeros({0})); }), HasSubstr("no elements"));
}

}  // namespace
}  // namespace xylem
