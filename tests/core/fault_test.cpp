// SPDX-License-Identifier: Apache-2.0
#include "core/device/fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/ops.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A program's own operations have faults of their own.
const Fault kOdd("halve", [](int64_t value, int64_t bound) {
  return std::to_string(value) + " of at most " + std::to_string(bound) + " is odd";
});

TEST(Fault, OfAnOperationOutsideTheTreeSaysWhatItMeans) {
  EXPECT_THAT(error_of([] { kOdd.raise(3, 10); }), HasSubstr("halve: 3 of at most 10 is odd"));
}

TEST(Fault, NamesOperationValueAndBound) {
  Tensor table = ones({4, 2}), bad = from_vector<int64_t>({0, 7}, {2});
  EXPECT_THAT(error_of([&] { embedding(bad, table); }), AllOf(HasSubstr("embedding: index 7"), HasSubstr("4 rows")));
  EXPECT_THAT(error_of([&] { index_select(table, 0, bad); }),
              AllOf(HasSubstr("index_select: index 7"), HasSubstr("4")));
  EXPECT_THAT(error_of([&] { gather(table, 0, bad.reshape({2, 1})); }), HasSubstr("gather: index 7"));
  EXPECT_THAT(error_of([&] {
                scatter_add(table, 0, bad.reshape({2, 1}), ones({2, 1}));
              }),
              HasSubstr("scatter_add: index 7"));
  EXPECT_THAT(error_of([&] {
                cross_entropy(ones({2, 5}), bad);
              }),
              AllOf(HasSubstr("cross_entropy: target 7"), HasSubstr("5 classes")));
}

TEST(CudaFault, IsThrownWhereTheHostNextWaitsAndThenForgotten) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Device gpu = Device::cuda();
  Tensor table = ones({4, 2}, f32, gpu), bad = from_vector<int64_t>({0, 7}, {2}, gpu), good = zeros({2}, i64, gpu);
  Tensor y = embedding(bad, table);
  EXPECT_THAT(error_of([&] { y.to_vector<float>(); }), HasSubstr("embedding: index 7 is outside a table of 4 rows"));
  EXPECT_EQ(embedding(good, table).to_vector<float>(), std::vector<float>(4, 1));
  Tensor loss = cross_entropy(ones({2, 5}, f32, gpu), bad);
  EXPECT_THAT(error_of([&] { loss.item(); }), HasSubstr("cross_entropy: target 7"));
}

}  // namespace
}  // namespace xylem
