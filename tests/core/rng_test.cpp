// SPDX-License-Identifier: Apache-2.0
#include "core/random/rng.h"

#include <gtest/gtest.h>

#include "ops/ops.h"

namespace xylem {
namespace {

// Known answers of Philox 4x32-10, from Random123's kat_vectors.
TEST(Philox, KnownAnswers) {
  Philox4 zero = philox(0, 0, 0);
  EXPECT_EQ(zero.v[0], 0x6627e8d5u);
  EXPECT_EQ(zero.v[1], 0xe169c58du);
  EXPECT_EQ(zero.v[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.v[3], 0x9b00dbd8u);
  Philox4 ones = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.v[0], 0x408f276du);
  EXPECT_EQ(ones.v[1], 0x41c83b0eu);
  EXPECT_EQ(ones.v[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.v[3], 0x6d5451fdu);
}

TEST(Rng, StateRestoresTheSequence) {
  rng::seed(3);
  rng::next_step();
  rand({10});
  RngState mark = rng::state();
  auto first = rand({100}).to_vector<float>();
  auto second = rand({100}).to_vector<float>();
  EXPECT_NE(first, second);
  rng::set_state(mark);
  EXPECT_EQ(rand({100}).to_vector<float>(), first);
  EXPECT_EQ(rand({100}).to_vector<float>(), second);
}

TEST(Rng, StepsAndSeedsDiffer) {
  rng::seed(3);
  auto a = rand({16}).to_vector<float>();
  rng::next_step();
  auto b = rand({16}).to_vector<float>();
  rng::seed(4);
  auto c = rand({16}).to_vector<float>();
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
}

TEST(CudaRng, DrawsTheSameNumbersAsTheCpu) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (int step = 0; step < 3; ++step) {
    RngState mark = rng::state();
    auto uniform = rand({1001}).to_vector<float>(), normal = randn({1001}).to_vector<float>();
    rng::set_state(mark);
    EXPECT_EQ(rand({1001}, f32, Device::cuda()).to_vector<float>(), uniform);
    EXPECT_EQ(randn({1001}, f32, Device::cuda()).to_vector<float>(), normal);
    rng::next_step();
  }
}

}  // namespace
}  // namespace xylem
