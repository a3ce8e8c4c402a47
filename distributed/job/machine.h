// SPDX-License-Identifier: Apache-2.0
// What a job runs on: every host is looked at once, and all ranks learn the whole.
#pragma once
#include <vector>

#include "distributed/group/group.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/topology.h"

namespace xylem {

struct JobTopology {
  Topology topology;
  std::vector<Finding> findings;  // of each host's surroundings, beside those of the whole
};
// Collective: what all hosts of the group detect, the same on each rank.
JobTopology gather_topology(const Group& group);
// Collective: what tensors of `device` travel over, as far as it is known: for CPU tensors the hosts, for GPUs what
// each host detects.
Topology job_machine(const Group& world, Device device);

}  // namespace xylem
