// SPDX-License-Identifier: Apache-2.0
// Tensors of more than 2^31 elements: every offset must be 64-bit. The interesting elements sit behind that border.
#include <gtest/gtest.h>

#include <cmath>

#include "core/device/allocator.h"
#include "ops/ops.h"

namespace xylem {
namespace {

constexpr int64_t kMany = (int64_t(1) << 31) + 4096 + 7;

class CudaHuge : public testing::Test {
 protected:
  Device gpu() const { return Device::cuda(); }
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
    try {
      Tensor probe = empty({int64_t(48) << 30}, u8, gpu());
    } catch (const OutOfMemory&) {
      GTEST_SKIP() << "needs 48 GiB of GPU memory";
    }
    allocator(gpu()).release_cached();
  }
  void TearDown() override {
    if (!IsSkipped()) allocator(gpu()).release_cached();
  }
};

TEST_F(CudaHuge, PointwiseCastAndReductions) {
  NoGrad guard;
  Tensor x = full({kMany}, 1, bf16, gpu());
  x.slice(0, kMany - 2, kMany).fill_(3);
  Tensor y = exp(x);
  EXPECT_NEAR(y[kMany - 1].item(), std::exp(3.0), 0.1);
  EXPECT_NEAR(y[kMany - 3].item(), std::exp(1.0), 0.02);
  y = {};
  Tensor z = x + x;
  EXPECT_EQ(z[kMany - 1].item(), 6);
  z = x.reshape({kMany, 1}) * full({1, 1}, 2, bf16, gpu());  // the strided path
  EXPECT_EQ(z[kMany - 1].item(), 6);
  z = {};
  EXPECT_EQ(amax(x).item(), 3);
  EXPECT_EQ(argmax(x).item<int64_t>(), kMany - 2);
  Tensor wide = x.to(f32);
  EXPECT_EQ(wide[kMany - 1].item(), 3);
  EXPECT_NEAR(sum(wide).item() / double(kMany + 4), 1, 1e-6);
  Tensor turned = wide.slice(0, 0, kMany - kMany % 2).reshape({2, -1}).transpose(0, 1).contiguous();
  EXPECT_EQ(turned.select(1, 1)[turned.size(0) - 1].item(), wide[kMany - kMany % 2 - 1].item());
}

TEST_F(CudaHuge, DropoutRepeatsItsMask) {
  Tensor x = ones({kMany}, bf16, gpu()).set_requires_grad();
  Tensor y = dropout(x, 0.5);
  EXPECT_NEAR(mean(y.detach().slice(0, kMany - 4096, kMany)).item(), 1, 0.1);
  y.backward(ones({kMany}, bf16, gpu()));
  EXPECT_EQ(x.grad().slice(0, kMany - 4096, kMany).to_vector<float>(),
            y.detach().slice(0, kMany - 4096, kMany).to_vector<float>());
}

TEST_F(CudaHuge, CrossEntropyOfALanguageModelsLogits) {
  int64_t rows = kMany / 50304 + 1, vocab = 50304;
  Tensor logits = zeros({rows, vocab}, bf16, gpu()), targets = zeros({rows}, i64, gpu());
  targets.slice(0, rows - 1, rows).fill_(double(vocab - 1));
  logits[rows - 1].slice(0, vocab - 1, vocab).fill_(20);
  logits.set_requires_grad();
  Tensor loss = cross_entropy(logits, targets);
  double uniform = std::log(double(vocab)), last = std::log(std::exp(20.0) + double(vocab - 1)) - 20;
  EXPECT_NEAR(loss.item(), (uniform * double(rows - 1) + last) / double(rows), 1e-3);
  loss.backward();
  Tensor g = logits.grad()[rows - 2];
  EXPECT_NEAR(g[0].item() * double(rows), 1.0 / double(vocab) - 1, 0.01);
  EXPECT_NEAR(logits.grad()[rows - 1][vocab - 1].item() * double(rows), std::exp(-last) - 1, 1e-3);
}

TEST_F(CudaHuge, AdamWReachesTheLastParameter) {
  NoGrad guard;
  Tensor p = zeros({kMany}, f32, gpu()), g = ones({kMany}, f32, gpu()), m = zeros({kMany}, f32, gpu()),
         v = zeros({kMany}, f32, gpu());
  adamw_step(p, {}, g, m, v, full({1}, 0.1, f32, gpu()), full({1}, 1, i64, gpu()), {.weight_decay = 0});
  EXPECT_NEAR(p[kMany - 1].item(), -0.1, 1e-6);
  EXPECT_NEAR(p[0].item(), -0.1, 1e-6);
  EXPECT_NEAR(std::sqrt(sum_of_squares({g}).item() / double(kMany)), 1, 1e-6);
}

}  // namespace
}  // namespace xylem
