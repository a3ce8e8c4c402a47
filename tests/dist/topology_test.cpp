// SPDX-License-Identifier: Apache-2.0
// The topology of a job is the same on all ranks.
#include <gtest/gtest.h>

#include "distributed/group/group.h"
#include "distributed/job/machine.h"
#include "distributed/topology/json.h"
#include "distributed/world/world.h"

namespace xylem {
namespace {

TEST(JobTopologyTest, IsTheSameOnAllRanks) {
  Group group = Group::world();
  JobTopology job = gather_topology(group);
  EXPECT_EQ(int(job.topology.hosts.size()), world().nodes);
  std::string mine = to_json(job.topology) + findings_to_json(job.findings);
  for (const std::string& other : group.gather_strings(mine)) EXPECT_EQ(other, mine);
  for (const Finding& f : job.findings) EXPECT_NE(f.code, "RANKS_UNEVEN");
}

}  // namespace
}  // namespace xylem
