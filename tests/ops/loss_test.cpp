// SPDX-License-Identifier: Apache-2.0
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
