// SPDX-License-Identifier: Apache-2.0
#include "core/random/rng.h"
#include "ops/matmul/matmul.h"
#include "tests/ops/helpers.h"

namespace xylem {
namespace {

// The gradients of layers that share an input are added by the products themselves.
TEST(LinearGradient, OfLayersThatShareAnInput) {
  for (Device device : test_devices())
    for (DType dtype : {f64, f32, bf16}) {
      auto run = [&](DType type, Device on) {
        auto make = [&](const Shape& shape, uint64_t seed) {
          return sample_normal(shape, 1, seed).to(dtype).to(type).to(on).set_requires_grad();
        };
        Tensor x = make({2, 7, 16}, 1), shared = x * 1.0;
        Tensor q = linear(shared, make({8, 16}, 2)), k = linear(shared, make({24, 16}, 3)),
               v = linear(shared, make({5, 16}, 4));
        (sum(q) + sum(k) * 2.0 + sum(v)).backward();
        return x.grad().to_vector<double>();
      };
      EXPECT_LE(distance(run(dtype, device), run(f64, Device::cpu())), 2 * tolerance_of(dtype)) << device << dtype;
    }
}

// A weight's gradient: a sum over very many rows whose terms must not be rounded on the way, the same on every run.
TEST(LinearGradient, OverManyRowsCuda) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const Device gpu = Device::cuda();
  const int64_t rows = 65536, out = 384, in = 256;
  rng::seed(5);
  Tensor dy = randn({rows, out}, f32, gpu).to(bf16), x = randn({rows, in}, f32, gpu).to(bf16);
  Tensor want = matmul(dy.to(f64).transpose(0, 1), x.to(f64));
  Tensor dw = full({out, in}, 1, f32, gpu);
  gemm(dy.transpose(0, 1), x, dw, true);
  // Of sums of 65,536 terms of deviation 1: f32 keeps them to 1e-4 of their deviation, bf16 would to 1e-2.
  EXPECT_LE(distance((dw.to(f64) - 1.0) * (1.0 / 256), want * (1.0 / 256)), 1e-4);
  auto first = dw.to_vector<float>();
  for (int i = 0; i < 5; ++i) {
    dw.fill_(1);
    gemm(dy.transpose(0, 1), x, dw, true);
    EXPECT_EQ(dw.to_vector<float>(), first);
  }
}

}  // namespace
}  // namespace xylem
