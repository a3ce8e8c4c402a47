// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/ops/helpers.h"

namespace xylem {
namespace {

using testing::HasSubstr;

TEST(Embedding, SumsRepeatedRowsWhateverTheRunLength) {
  // Runs inside a chunk of sorted rows, across one edge, across many, and one that fills everything.
  for (Device device : test_devices())
    for (int64_t words : {1, 2, 9, 400})
      for (int64_t width : {1, 3, 8, 40, 1024})
        for (DType dtype : {f32, bf16}) {
          const int64_t tokens = 1000;
          Tensor ids = sample_index({tokens}, words, 7).to(device),
                 table = zeros({words, width}, dtype, device).set_requires_grad();
          Tensor dy = sample_normal({tokens, width}).to(dtype).to(device);
          std::vector<double> want(words * width), at = ids.to_vector<double>(), d = dy.to_vector<double>();
          for (int64_t t = 0; t < tokens; ++t)
            for (int64_t c = 0; c < width; ++c) want[int64_t(at[t]) * width + c] += d[t * width + c];
          embedding(ids, table).backward(dy);
          EXPECT_LE(distance(table.grad().to_vector<double>(), want), tolerance_of(dtype))
              << device << words << " " << width;
        }
}

TEST(Embedding, WritesIntoTheLeafsBuffer) {
  for (Device device : test_devices()) {
    Tensor table = sample_normal({5, 4}).to(bf16).to(device).set_requires_grad();
    table.set_grad(full({5, 4}, 99, f32, device));  // old values that the first contribution overwrites
    table.zero_grad();
    void* buffer = table.grad().raw();
    Tensor ids = from_vector<int64_t>({3, 1, 3}, {3}, device), dy = ones({3, 4}, bf16, device);
    embedding(ids, table).backward(dy);
    EXPECT_EQ(table.grad().raw(), buffer);
    EXPECT_EQ(table.grad().select(1, 0).to_vector<float>(), (std::vector<float>{0, 1, 0, 2, 0}));
    embedding(ids.to(i32), table).backward(dy);
    EXPECT_EQ(table.grad().select(1, 0).to_vector<float>(), (std::vector<float>{0, 2, 0, 4, 0}));
  }
}

TEST(Embedding, SharedTableAddsBothContributions) {
  Tensor table = sample_normal({6, 4}).to(f32).set_requires_grad(), ids = sample_index({5}, 6);
  Tensor out = matmul(embedding(ids, table), table.transpose(0, 1));
  Tensor dy = sample_normal({5, 6}, 1, 3).to(f32);
  out.backward(dy);
  // d/dtable of rows(table) table^T, by hand.
  auto rows = index_select(table.detach(), 0, ids);
  Tensor want = matmul(dy.transpose(0, 1), rows);
  want = scatter_add(want, 0, ids.reshape({5, 1}).expand({5, 4}).contiguous(), matmul(dy, table.detach()));
  EXPECT_LE(distance(table.grad(), want), 1e-5);
}

TEST(Embedding, IndexOutOfRangeNamesIndexAndTable) {
  for (int64_t bad : {-1, 7}) {
    Tensor ids = from_vector<int64_t>({0, bad}, {2}), table = ones({7, 3});
    for (Device device : test_devices()) {
      // On the GPU the error comes with the next value that is read.
      auto use = [&] { embedding(ids.to(device), table.to(device)).to_vector<float>(); };
      EXPECT_THAT(error_of(use), AllOf(HasSubstr("embedding"), HasSubstr(std::to_string(bad)), HasSubstr("7 rows")))
          << device;
      EXPECT_EQ(error_of([&] { embedding(ids.slice(0, 0, 1).to(device), table.to(device)).to_vector<float>(); }),
                "no error");
    }
  }
}

TEST(Gather, OutOfRangeIsAnError) {
  for (Device device : test_devices()) {
    Tensor x = ones({2, 3}, f32, device), index = from_vector<int64_t>({0, 3}, {2, 1}, device);
    EXPECT_THAT(error_of([&] { gather(x, 1, index).to_vector<float>(); }),
                AllOf(HasSubstr("gather: index 3"), HasSubstr("size 3")));
    EXPECT_THAT(error_of([&] {
                  scatter_add(x, 1, index, ones({2, 1}, f32, device)).to_vector<float>();
                }),
                HasSubstr("scatter_add: index 3"));
    EXPECT_THAT(error_of([&] { index_select(x, 0, index.reshape({2})).to_vector<float>(); }),
                HasSubstr("index_select: index 3"));
  }
}

TEST(Gather, PicksAndAdds) {
  for (Device device : test_devices()) {
    Tensor x = arange(6, f32, device).reshape({2, 3}), index = from_vector<int64_t>({2, 0, 2, 1, 1, 1}, {2, 3}, device);
    EXPECT_EQ(gather(x, 1, index).to_vector<float>(), (std::vector<float>{2, 0, 2, 4, 4, 4}));
    EXPECT_EQ(scatter_add(x, 1, index, ones({2, 3}, f32, device)).to_vector<float>(),
              (std::vector<float>{1, 1, 4, 3, 7, 5}));
    EXPECT_EQ(index_select(x, 1, from_vector<int64_t>({2, 2}, {2}, device)).to_vector<float>(),
              (std::vector<float>{2, 2, 5, 5}));
    EXPECT_EQ(gather(arange(4, i64, device), 0, from_vector<int32_t>({3, 0}, {2}, device)).to_vector<int64_t>(),
              (std::vector<int64_t>{3, 0}));
  }
}

TEST(Gather, ShapesMustFit) {
  Tensor x = ones({2, 3}), index = zeros({3, 1}, i64);
  EXPECT_THAT(error_of([&] { gather(x, 1, index); }), AllOf(HasSubstr("[3, 1]"), HasSubstr("[2, 3]")));
  EXPECT_THAT(error_of([&] {
                scatter_add(x, 0, index, ones({3, 2}));
              }),
              AllOf(HasSubstr("[3, 1]"), HasSubstr("[3, 2]")));
  EXPECT_THAT(error_of([&] { gather(x, 1, zeros({2, 1})); }), HasSubstr("f32"));
}

TEST(ScatterAdd, SixteenBitSumsDoNotStall) {
  // 1000 ones in bf16: adding one by one in bf16 would stop at 256.
  for (Device device : test_devices()) {
    Tensor y = scatter_add(zeros({1}, bf16, device), 0, zeros({1000}, i64, device), ones({1000}, bf16, device));
    EXPECT_EQ(y.item(), 1000);
  }
}

}  // namespace
}  // namespace xylem
