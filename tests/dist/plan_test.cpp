// SPDX-License-Identifier: Apache-2.0
// CPU tensors obey the plan: the flight recorder shows the algorithm.
#include <gmock/gmock.h>

#include "distributed/plan/job.h"
#include "distributed/watchdog/recorder.h"

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

}  // namespace
}  // namespace xylem
