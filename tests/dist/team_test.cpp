// SPDX-License-Identifier: Apache-2.0
// What the ranks of a training job agree on.
#include "models/train/team.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/dist/training.h"

namespace xylem {
namespace {

using testing::HasSubstr;

TEST(Team, OneRankStopsAll) {
  Team team(Group::world());
  EXPECT_FALSE(team.any(false));
  EXPECT_TRUE(team.any(team.rank() == team.size() - 1));
  EXPECT_EQ(team.largest(team.rank() * 1.5), (team.size() - 1) * 1.5);
}

TEST(Team, SharesTheGlobalBatchEvenly) {
  Team team(Group::world());
  TrainConfig config;
  config.train.global_batch = 8 * team.size();
  EXPECT_EQ(team.split(config).micro, 8);
  EXPECT_EQ(team.split(config).micro_batches, 1);
  config.train.micro_batch = 2;
  EXPECT_EQ(team.split(config).micro, 2);
  EXPECT_EQ(team.split(config).micro_batches, 4);
  config.train.micro_batch = 3;
  EXPECT_THAT(error_of([&] { team.split(config); }), HasSubstr("not a multiple of train.micro_batch (3)"));
  config.train = {.global_batch = 8 * team.size() + 1};
  if (team.size() > 1) {
    EXPECT_THAT(error_of([&] { team.split(config); }), HasSubstr(") is not a multiple"));
  }
}

TEST(Team, EveryRankDrawsItsOwnRandomNumbers) {
  Team team(Group::world());
  rng::seed(11);
  team.seed(11);
  if (team.root()) {
    EXPECT_EQ(rng::state().seed, 11u);
  }
  auto seeds = team.group().gather_integers(int64_t(rng::state().seed));
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::unique(seeds.begin(), seeds.end()), seeds.end());
}

}  // namespace
}  // namespace xylem
