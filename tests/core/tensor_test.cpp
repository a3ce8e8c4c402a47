// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/tensor/add_flat.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensor counting(const Shape& shape) { return arange(shape.numel(), f32).reshape(shape); }

TEST(Tensor, ViewsShareStorage) {
  Tensor x = counting({2, 3});
  x.transpose(0, 1).select(0, 1).fill_(9);
  EXPECT_THAT(x.to_vector<int>(), ElementsAre(0, 9, 2, 3, 9, 5));
}

TEST(Tensor, SliceStepsAndClamps) {
  Tensor x = counting({7});
  EXPECT_THAT(x.slice(0, 1, 100, 2).to_vector<int>(), ElementsAre(1, 3, 5));
  EXPECT_THAT(x.slice(0, -2, 7).to_vector<int>(), ElementsAre(5, 6));
  EXPECT_EQ(x.slice(0, 5, 2).numel(), 0);
}

TEST(Tensor, ReshapeCopiesOnlyWhereStridesForceIt) {
  Tensor x = counting({2, 3, 4});
  EXPECT_EQ(x.reshape({6, 4}).raw(), x.raw());
  EXPECT_EQ(x.narrow(1, 1, 2).reshape({2, 8}).shape(), (Shape{2, 8}));
  Tensor t = x.transpose(0, 1);
  EXPECT_NE(t.reshape({24}).raw(), x.raw());
  EXPECT_THROW(t.view({24}), Error);
  EXPECT_THAT(counting({2, 2}).transpose(0, 1).reshape({4}).to_vector<int>(), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(counting({4, 1, 6}).narrow(2, 0, 3).view({4, 3}).stride(0), 6);
}

TEST(Tensor, ExpandHasZeroStride) {
  Tensor x = counting({3, 1}).expand({2, 3, 4});
  EXPECT_EQ(x.stride(2), 0);
  EXPECT_EQ(x.to_vector<int>()[5], 1);
  EXPECT_THROW(counting({3}).expand({4}), Error);
}

TEST(Tensor, CatAndSplitAreInverse) {
  Tensor x = counting({3, 5});
  Tensors parts = x.split({1, 4}, 1);
  EXPECT_EQ(cat(parts, 1).to_vector<int>(), x.to_vector<int>());
  EXPECT_EQ(stack({x, x}, 1).shape(), (Shape{3, 2, 5}));
  EXPECT_THROW(cat({counting({2, 3}), counting({2, 4})}, 0), Error);
  EXPECT_THROW(x.split({1, 2}, 1), Error);
}

TEST(Tensor, PiecesAndRangesOutsideTheTensorAreRefused) {
  Tensor x = counting({5});
  EXPECT_THAT(error_of([&] { x.split({-1, 6}); }), HasSubstr("-1"));
  EXPECT_THAT(error_of([&] { x.narrow(0, 0, -1); }), HasSubstr("length -1"));
  EXPECT_THAT(error_of([&] { x.narrow(0, 3, 4); }), HasSubstr("[5]"));
  EXPECT_THAT(x.narrow(0, -2, 2).to_vector<int>(), ElementsAre(3, 4));
  EXPECT_THAT(error_of([&] { counting({6}).reshape({-2, -3}); }), HasSubstr("[-2, -3]"));
  EXPECT_THAT(error_of([&] { counting({}).expand({-3}); }), HasSubstr("[-3]"));
}

TEST(Tensor, EmptySlicesHaveGradients) {
  for (int64_t begin : {0, 1, 5})
    for (int64_t step : {1, 2, 7}) {
      Tensor x = counting({5}).set_requires_grad();
      Tensor y = x.slice(0, begin, begin, step);
      y.backward(zeros({0}));
      EXPECT_EQ(x.grad().to_vector<float>(), std::vector<float>(5, 0)) << "from " << begin << " in steps of " << step;
    }
}

TEST(Tensor, IntegersBeyondThePrecisionOfADoubleAreExact) {
  const int64_t big = (int64_t(1) << 53) + 1, low = std::numeric_limits<int64_t>::min() + 1;
  EXPECT_EQ(from_vector<int64_t>({big}, {1}).item<int64_t>(), big);
  EXPECT_EQ(from_vector<int64_t>({low}, {1}).item<int64_t>(), low);
  EXPECT_EQ(full({2}, big, i64).to_vector<int64_t>()[1], big);
  EXPECT_EQ(zeros({1}, i64).fill_(low).item<int64_t>(), low);
  EXPECT_THAT(full({1}, big, i64).str(), HasSubstr("9007199254740993"));
}

TEST(Tensor, CastsRoundAsExpected) {
  Tensor x = from_vector<double>({1.00390625, -2.5, 65536, 1e-9}, {4});
  EXPECT_THAT(x.to(bf16).to_vector<double>(), ElementsAre(1.0, -2.5, 65536, testing::DoubleNear(1e-9, 1e-11)));
  EXPECT_THAT(x.to(f16).to_vector<double>(), ElementsAre(1.00390625, -2.5, std::numeric_limits<double>::infinity(), 0));
  EXPECT_THAT(x.to(i32).to_vector<int>(), ElementsAre(1, -2, 65536, 0));
  EXPECT_THAT(x.to(boolean).to(i64).to_vector<int>(), ElementsAre(1, 1, 1, 1));
  int64_t big = (int64_t(1) << 62) + 1;
  EXPECT_EQ(from_vector<int64_t>({big}, {1}).to(u8).to(i64).item<int>(), 1);
}

TEST(Tensor, HalfConversionsRoundTripEveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    float16 h;
    h.bits = uint16_t(bits);
    bfloat16 b;
    b.bits = uint16_t(bits);
    float f = h, g = b;
    if (!std::isnan(f)) {
      ASSERT_EQ(float16(f).bits, bits);
    }
    if (!std::isnan(g)) {
      ASSERT_EQ(bfloat16(g).bits, bits);
    }
  }
}

TEST(Tensor, CopyBroadcastsCastsAndFollowsStrides) {
  Tensor x = zeros({2, 3}, f64);
  x.transpose(0, 1).copy_(from_vector<float>({1, 2}, {1, 2}));
  EXPECT_THAT(x.to_vector<int>(), ElementsAre(1, 1, 1, 2, 2, 2));
  x.add_(ones({2, 3}, f32), 0.5);
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(1.5, 1.5, 1.5, 2.5, 2.5, 2.5));
}

TEST(Tensor, CastsKeepADenseLayout) {
  Tensor x = counting({2, 4, 4, 3}).permute({0, 3, 1, 2});
  EXPECT_EQ(x.to(bf16).strides(), x.strides());
}

TEST(Tensor, SetDataMovesEveryHandle) {
  Tensor a = counting({2}), b = a;
  a.set_data(full({3}, 7, f64));
  EXPECT_EQ(b.shape(), Shape{3});
  EXPECT_EQ(b.dtype(), f64);
}

TEST(Tensor, EmptyAndScalarTensorsWork) {
  EXPECT_EQ(full({}, 3).item(), 3);
  Tensor none = zeros({0, 4});
  EXPECT_EQ(none.reshape({2, 0}).clone().numel(), 0);
  EXPECT_EQ(cat({none, counting({1, 4})}, 0).numel(), 4);
}

TEST(Tensor, ErrorsNameValuesAndShapes) {
  try {
    counting({2, 3}).size(2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("dimension 2"));
    EXPECT_THAT(e.what(), HasSubstr("[2, 3]"));
  }
  EXPECT_THROW(counting({2}).data<double>(), Error);
  EXPECT_THROW(counting({2}).item(), Error);
  EXPECT_THROW(Tensor().shape(), Error);
  EXPECT_THROW(counting({2, 3}).reshape({4, -1}), Error);
  EXPECT_THROW(parse_dtype("f23"), Error);
  EXPECT_THROW(Device::parse("gpu"), Error);
  EXPECT_THROW(Device::parse("cuda:x"), Error);
  EXPECT_THAT(error_of([] { Device::parse("cuda:99999999999"); }), HasSubstr("\"cuda:99999999999\""));
}

TEST(CudaTensor, CopiesBetweenDevicesCastAndFollowStrides) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  Tensor x = counting({4, 6});
  Tensor strided = x.transpose(0, 1).slice(0, 0, 6, 2);
  EXPECT_EQ(strided.to(gpu).to_vector<float>(), strided.to_vector<float>());
  for (DType from : {f64, f32, f16, bf16, i64, i32, i8, u8, boolean})
    for (DType to : {f64, f32, f16, bf16, i64, i32, i8, u8, boolean})
      EXPECT_EQ(strided.to(from).to(gpu).to(to).to_vector<double>(), strided.to(from).to(to).to_vector<double>())
          << from << " to " << to;
  Tensor target = zeros({6, 4}, f64, gpu).transpose(0, 1);
  target.copy_(x);
  target.add_(x.to(gpu), -0.5);
  EXPECT_EQ(target.to_vector<double>()[23], 11.5);
}

TEST(CudaTensor, PinnedCopiesAreAsynchronousAndRight) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Tensor host = counting({1 << 20}).pin();
  Tensor device = empty(host.shape(), f32, Device::cuda());
  device.copy_(host, true);
  synchronize(Device::cuda());
  EXPECT_EQ(device.to_vector<float>(), host.to_vector<float>());
}

TEST(CudaTensor, PinnedMemoryIsReusedOnlyAfterTheCopiesThatReadIt) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  const Shape shape{64 << 20};
  Tensor busy = zeros(shape, u8, gpu), sent = empty(shape, u8, gpu);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 50; ++i) busy.fill_(i + 1);  // so that the copy has to wait its turn
    sent.copy_(full(shape, 1 + round, u8).pin(), true);
    Tensor next = empty_pinned(shape, u8).fill_(99);
    synchronize(gpu);
    Tensor back = sent.to(Device::cpu());
    EXPECT_EQ(back[0].item<int>(), 1 + round);
    EXPECT_EQ(back[shape[0] - 1].item<int>(), 1 + round);
  }
}

TEST(CudaTensor, ToWaitsUnlessToldNotTo) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  Tensor host = counting({1 << 20}).pin();
  EXPECT_TRUE(host.is_pinned());
  EXPECT_FALSE(counting({3}).is_pinned());
  const auto values = host.to_vector<float>();
  Tensor there = host.to(gpu);
  host.fill_(0);
  EXPECT_EQ(there.to_vector<float>(), values);
  EXPECT_EQ(counting({1 << 20}).pin().to(gpu, true).to_vector<float>(), values);
}

TEST(Shape, Broadcasts) {
  EXPECT_EQ(broadcast({3, 1}, {1, 4}), (Shape{3, 4}));
  EXPECT_EQ(broadcast({}, {2}), (Shape{2}));
  EXPECT_EQ(broadcast({0}, {1}), (Shape{0}));
  EXPECT_THROW(broadcast({2}, {3}), Error);
}

TEST(DType, Promotes) {
  EXPECT_EQ(promote(f16, bf16), f32);
  EXPECT_EQ(promote(bf16, i64), bf16);
  EXPECT_EQ(promote(f32, f64), f64);
  EXPECT_EQ(promote(u8, i8), i32);
  EXPECT_EQ(promote(boolean, u8), u8);
}

TEST(Tensor, DenseInAnyOrderOfDimensions) {
  Tensor t = arange(24, f32).reshape({2, 3, 4});
  EXPECT_TRUE(t.is_dense());
  EXPECT_TRUE(t.permute({2, 0, 1}).is_dense());
  EXPECT_TRUE(t.narrow(0, 1, 1).is_dense());
  EXPECT_FALSE(t.narrow(1, 0, 2).is_dense());
  EXPECT_FALSE(t.narrow(2, 0, 1).expand({2, 3, 4}).is_dense());
}

TEST(Tensor, EmptyInTheOrderOfAnother) {
  auto strides = [](const Tensor& like, const Shape& shape) {
    return empty_in_order_of(like, shape, f32, Device::cpu()).strides();
  };
  Tensor rows = zeros({2, 3, 4, 5}), last = zeros({2, 4, 5, 3}).permute({0, 3, 1, 2});
  EXPECT_EQ(strides(rows, {2, 3, 4, 5}), rows.strides());
  EXPECT_EQ(strides(last, {2, 3, 4, 5}), last.strides());
  EXPECT_EQ(strides(last, {2, 6, 4, 5}), (Strides{120, 1, 30, 6}));
  EXPECT_EQ(strides(last.narrow(1, 0, 2), {2, 2, 4, 5}), (Strides{40, 1, 10, 2}));             // gaps are closed
  EXPECT_EQ(strides(zeros({1, 3, 1, 1}).expand({2, 3, 4, 5}), {2, 3, 4, 5}), rows.strides());  // repeated elements
  // Dimensions of size 1 have no order of their own.
  EXPECT_EQ(strides(zeros({2, 1, 4, 5}), {2, 3, 4, 5}), rows.strides());
  EXPECT_EQ(strides(zeros({2, 4, 5, 1}).permute({0, 3, 1, 2}), {2, 3, 4, 5}), last.strides());
  EXPECT_EQ(strides(zeros({2, 3, 4, 1}), {2, 3, 4, 5}), rows.strides());
  EXPECT_EQ(strides(zeros({0, 3, 4, 5}), {2, 3, 4, 5}), rows.strides());
}

TEST(Tensor, CatAndSplitKeepTheOrderOfDimensions) {
  Tensor last = arange(2 * 4 * 5 * 3, f32).reshape({2, 4, 5, 3}).permute({0, 3, 1, 2});
  Tensor both = cat({last, last}, 1);
  EXPECT_TRUE(both.permute({0, 2, 3, 1}).is_contiguous());
  EXPECT_EQ(both.narrow(1, 3, 3).to_vector<float>(), last.to_vector<float>());
}

// In every type, and at addresses that are not multiples of 16 bytes.
TEST(Tensor, FlatSumsCuda) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (DType type : {f64, f32, f16, bf16})
    for (int64_t n : {1, 7, 4096, 100003})
      for (int64_t from : {0, 1}) {
        Tensor a = arange(n + 1, f64).to(type).narrow(0, from, n), b = (arange(n + 1, f64)).to(type).narrow(0, 1, n);
        Tensor device_a = zeros({n + 1}, type, Device::cuda(0)).narrow(0, from, n);
        device_a.copy_(a);
        Tensor device_b = b.to(Device::cuda(0)), want = zeros({n}, type);
        ASSERT_TRUE(can_add_flat(want, a, b));
        add_flat(want, a, b);
        device_a.add_(device_b);
        EXPECT_EQ(device_a.to_vector<double>(), want.to_vector<double>()) << type << " " << n << " " << from;
      }
}

}  // namespace
}  // namespace xylem
