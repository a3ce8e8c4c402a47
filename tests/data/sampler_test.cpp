// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/util/check.h"

namespace xylem {
namespace {

std::vector<int64_t> iota(int64_t n) {
  std::vector<int64_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), int64_t(0));
  return v;
}
std::vector<int64_t> sorted(std::vector<int64_t> v) {
  std::sort(v.begin(), v.end());
  return v;
}

// All ids of one epoch in the order of steps, then ranks.
std::vector<int64_t> epoch_ids(int64_t samples, SamplerOptions options, int64_t epoch = 0) {
  std::vector<int64_t> all;
  std::vector<Sampler> ranks;
  for (options.rank = 0; options.rank < options.world; ++options.rank) ranks.emplace_back(samples, options);
  int64_t steps = ranks[0].steps_per_epoch();
  for (int64_t s = epoch * steps; s < (epoch + 1) * steps; ++s)
    for (const Sampler& r : ranks)
      for (int64_t id : r.ids(s)) all.push_back(id);
  return all;
}

TEST(Sampler, PermuteIndexIsABijection) {
  for (int64_t n : {1, 2, 3, 5, 16, 17, 100, 1000, 4097}) {
    for (uint64_t key : {0, 1, 12345}) {
      std::vector<int64_t> image;
      for (int64_t i = 0; i < n; ++i) image.push_back(permute_index(i, n, key));
      EXPECT_EQ(sorted(image), iota(n)) << n << " " << key;
    }
  }
}

TEST(Sampler, EveryKeyShufflesDifferentlyAndEvenly) {
  // Where index 0 lands over many keys: about uniform over [0, 10). 400 draws expected each, sd 19.
  std::vector<int> counts(10);
  for (uint64_t key = 0; key < 4000; ++key) ++counts[size_t(permute_index(0, 10, key))];
  for (int c : counts) EXPECT_NEAR(c, 400, 100);
}

// However a global batch is divided, step by step it holds the same samples, over the ends of epochs too.
TEST(Sampler, GlobalBatchesDoNotDependOnTheDivision) {
  constexpr int64_t kGlobal = 8, kSamples = 101, kSteps = 40;
  for (int64_t block : {1, 5}) {
    auto global_batches = [&](int64_t micro, int world) {
      int64_t accumulate = kGlobal / micro / world;
      std::vector<std::vector<int64_t>> all;
      std::vector<Sampler> ranks;
      for (int r = 0; r < world; ++r)
        ranks.emplace_back(kSamples, SamplerOptions{.batch = micro,
                                                    .seed = 5,
                                                    .rank = r,
                                                    .world = world,
                                                    .block = block,
                                                    .window = 20,
                                                    .accumulate = accumulate,
                                                    .same_order = true});
      for (int64_t step = 0; step < kSteps; ++step) {
        all.emplace_back();
        for (int64_t i = 0; i < accumulate; ++i)
          for (const Sampler& r : ranks)
            for (int64_t id : r.ids(step * accumulate + i)) all.back().push_back(id);
      }
      return all;
    };
    auto alone = global_batches(8, 1);
    EXPECT_EQ(global_batches(2, 1), alone);
    EXPECT_EQ(global_batches(4, 2), alone);
    EXPECT_EQ(global_batches(1, 2), alone);
    EXPECT_EQ(global_batches(2, 4), alone);
    EXPECT_EQ(global_batches(1, 4), alone);
  }
}

TEST(Sampler, AnEpochIsAPermutationAndEpochsDiffer) {
  SamplerOptions o{.batch = 7, .seed = 3};
  auto first = epoch_ids(7 * 13, o), second = epoch_ids(7 * 13, o, 1);
  EXPECT_EQ(sorted(first), iota(7 * 13));
  EXPECT_EQ(sorted(second), iota(7 * 13));
  EXPECT_NE(first, second);
  EXPECT_NE(first, iota(7 * 13));
  o.seed = 4;
  EXPECT_NE(first, epoch_ids(7 * 13, o));
  o.shuffle = false;
  EXPECT_EQ(epoch_ids(7 * 13, o), iota(7 * 13));
}

TEST(Sampler, FarStepsAreReachedAtOnce) {
  Sampler s(int64_t(1) << 40, {.batch = 4, .seed = 1});
  EXPECT_EQ(s.steps_per_epoch(), int64_t(1) << 38);
  auto ids = s.ids((int64_t(1) << 45) + 12345);
  for (int64_t id : ids) EXPECT_TRUE(id >= 0 && id < int64_t(1) << 40) << id;
  EXPECT_EQ(ids, s.ids((int64_t(1) << 45) + 12345));
}

TEST(Sampler, RanksShareTheEpochInEqualSteps) {
  for (int world : {1, 2, 3, 4}) {
    for (bool drop : {true, false}) {
      SamplerOptions o{.batch = 5, .seed = 9, .drop_last = drop, .world = world};
      auto all = epoch_ids(103, o);
      Sampler s(103, o);
      EXPECT_EQ(int64_t(all.size()), s.steps_per_epoch() * 5 * world);
      std::set<int64_t> unique(all.begin(), all.end());
      if (drop) {
        EXPECT_EQ(unique.size(), all.size());
        EXPECT_EQ(s.dropped(), 103 - int64_t(all.size()));
        EXPECT_EQ(s.padded(), 0);
      } else {
        EXPECT_EQ(unique.size(), 103u);
        EXPECT_EQ(s.padded(), int64_t(all.size()) - 103);
        EXPECT_EQ(s.dropped(), 0);
      }
    }
  }
}

TEST(Sampler, WindowedShuffleIsAPermutationThatKeepsBlocksTogether) {
  for (int64_t samples : {1000, 1003, 7, 64, 129}) {
    for (int world : {1, 2}) {
      SamplerOptions o{.batch = 1, .seed = 5, .drop_last = false, .world = world, .block = 8, .window = 32};
      auto all = epoch_ids(samples, o);
      std::set<int64_t> unique(all.begin(), all.end());
      EXPECT_EQ(int64_t(unique.size()), samples) << samples << " " << world;
    }
  }
  SamplerOptions o{.batch = 1, .seed = 5, .block = 8, .window = 32};
  auto all = epoch_ids(1024, o);
  EXPECT_NE(all, iota(1024));
  std::set<int64_t> window_firsts;
  for (size_t w = 0; w < all.size(); w += 32) {
    std::set<int64_t> blocks;
    for (size_t i = 0; i < 32; ++i) blocks.insert(all[w + i] / 8);
    EXPECT_EQ(blocks.size(), 4u) << "a window of 32 reads four blocks of 8";
    window_firsts.insert(*blocks.begin());
  }
  EXPECT_EQ(window_firsts.size(), 32u);
}

TEST(Sampler, WindowedRanksReadDifferentBlocks) {
  SamplerOptions o{.batch = 8, .seed = 5, .world = 2, .block = 8, .window = 32};
  std::set<int64_t> blocks[2];
  for (o.rank = 0; o.rank < 2; ++o.rank) {
    Sampler s(1024, o);
    for (int64_t step = 0; step < s.steps_per_epoch(); ++step)
      for (int64_t id : s.ids(step)) blocks[o.rank].insert(id / 8);
  }
  EXPECT_EQ(blocks[0].size(), 64u);
  for (int64_t b : blocks[0]) EXPECT_FALSE(blocks[1].contains(b));
}

TEST(Sampler, ImpossibleOptionsAreErrors) {
  EXPECT_THROW(Sampler(10, {.batch = 0}), Error);
  EXPECT_THROW(Sampler(10, {.batch = 11}), Error);
  EXPECT_THROW(Sampler(10, {.batch = 1, .rank = 2, .world = 2}), Error);
  EXPECT_THROW(Sampler(0, {.batch = 1, .drop_last = false}), Error);
  EXPECT_EQ(Sampler(10, {.batch = 11, .drop_last = false}).steps_per_epoch(), 1);
}

}  // namespace
}  // namespace xylem
