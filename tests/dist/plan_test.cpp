// SPDX-License-Identifier: Apache-2.0
// CPU tensors obey the plan: the flight recorder shows the algorithm.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "distributed/job/machine.h"
#include "distributed/job/plan.h"
#include "distributed/plan/measured.h"
#include "distributed/record/recorder.h"
#include "distributed/world/world.h"

namespace xylem {
namespace {

TEST(JobPlan, DecidesOverMpi) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank: nothing travels";
  for (const char* name : {"ring", "tree"}) {
    Plan plan = apply_plan(world, Device::cpu(), {.algorithm = name});
    for (const std::string& hash : world.gather_strings(plan.hash())) EXPECT_EQ(hash, plan.hash());
    Tensor t = full({1 << 16}, world.rank() + 1);
    world.all_reduce(t).wait();
    EXPECT_EQ(t.to_vector<float>()[77], float(world.size() * (world.size() + 1) / 2));
    EXPECT_EQ(recorder::recent().back().algorithm, name);
  }
  Plan automatic = apply_plan(world, Device::cpu());
  const PlanEntry* large = automatic.find(CollectiveKind::all_reduce, 64 << 20);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(large->algorithm, Algorithm::ring);
  obey({}, Device::cpu());  // as before
}

// What `xylem bench collectives --save` left: a tree that is faster at every size, against the model.
TEST(JobPlan, ObeysKeptMeasurements) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank: nothing travels";
  const auto folder =
      std::filesystem::temp_directory_path() / ("xylem-measured-" + std::to_string(world.gather_integers(getpid())[0]));
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::optional<std::string> before = cache ? std::optional<std::string>(cache) : std::nullopt;
  setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  const Topology machine = job_machine(world, Device::cpu());
  const int nodes = xylem::world().nodes;
  if (world.rank() == 0) {
    MeasuredTable table{.topology = machine.fingerprint(),
                        .nccl = "mpi",
                        .driver = "",
                        .ranks = world.size(),
                        .nodes = nodes,
                        .rows = {}};
    for (int64_t bytes : {int64_t(8), int64_t(1) << 30})
      for (auto [algorithm, us] : {std::pair{Algorithm::ring, 200.0}, {Algorithm::tree, 100.0}})
        table.rows.push_back({CollectiveKind::all_reduce, algorithm, bytes, us});
    save_measured(table, machine);
  }
  world.barrier();
  Plan plan = apply_plan(world, Device::cpu());
  const PlanEntry* large = plan.find(CollectiveKind::all_reduce, 4 << 20);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(large->algorithm, Algorithm::tree);
  EXPECT_EQ(large->basis, Basis::measured);
  EXPECT_THAT(large->reason, testing::HasSubstr("measured here; ring +100 %"));
  Tensor t = full({1 << 20}, 1);
  world.all_reduce(t).wait();
  EXPECT_EQ(t.to_vector<float>()[5], float(world.size()));
  EXPECT_EQ(recorder::recent().back().algorithm, "tree");
  obey({}, Device::cpu());
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  before ? setenv("XDG_CACHE_HOME", before->c_str(), 1) : unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace xylem
