// SPDX-License-Identifier: Apache-2.0
// What the ranks of a training job agree on.
#include "models/loop/team.h"

#include <gmock/gmock.h>

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "distributed/world/world.h"
#include "tests/dist/training.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Team, OneRankStopsAll) {
  Team team(Group::world());
  EXPECT_FALSE(team.any(false));
  EXPECT_TRUE(team.any(team.rank() == team.size() - 1));
  EXPECT_EQ(team.largest(team.rank() * 1.5), (team.size() - 1) * 1.5);
}

TEST(Team, SharesTheGlobalBatchEvenly) {
  Team team(Group::world());
  const int64_t all = 8 * team.size();
  EXPECT_EQ(team.split(all).micro, 8);
  EXPECT_EQ(team.split(all).micro_batches, 1);
  EXPECT_EQ(team.split(all, 2).micro, 2);
  EXPECT_EQ(team.split(all, 2).micro_batches, 4);
  EXPECT_THAT(error_of([&] { team.split(all, 3); }), HasSubstr("not a multiple of micro_batch (3)"));
  if (team.size() > 1) {
    EXPECT_THAT(error_of([&] { team.split(all + 1); }), HasSubstr(") is not a multiple"));
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

TEST(Team, ARunFolderThatARankDoesNotShareIsAnError) {
  Team team(Group::world());
  namespace fs = std::filesystem;
  std::string text = fs::temp_directory_path() / "xylem_team_XXXXXX";
  fs::path root = team.group().gather_strings(team.root() ? mkdtemp(text.data()) : "")[0];
  team.check_shared(root / "run" / "inner");
  if (team.size() > 1) {
    EXPECT_TRUE(!team.root() || fs::is_empty(root / "run" / "inner"));
    // The last two ranks see another folder by that name.
    bool blind = team.rank() > 0 && team.rank() >= team.size() - 2;
    std::string folder = root / (blind ? "elsewhere" : "run"), here = root / "run", there = root / "elsewhere";
    EXPECT_THAT(
        error_of([&] { team.check_shared(folder, 0.1); }),
        AllOf(HasSubstr("run.dir must be one folder for all ranks"), HasSubstr(world().host + " ('" + here + "')"),
              HasSubstr("('" + there + "'), rank" +
                        (team.size() == 2
                             ? " 1"
                             : "s " + std::to_string(team.size() - 2) + ", " + std::to_string(team.size() - 1)))));
    // One that rank 0 cannot write to.
    if (team.root()) std::ofstream(root / "file").put('x');
    EXPECT_THAT(error_of([&] { team.check_shared(root / "file" / "run"); }), HasSubstr("cannot write to run.dir"));
  }
  team.barrier();
  if (team.root()) fs::remove_all(root);
}

}  // namespace
}  // namespace xylem
