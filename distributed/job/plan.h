// SPDX-License-Identifier: Apache-2.0
// A job's plan: made on rank 0, the same on all ranks, and obeyed by both backends of Group.
#pragma once
#include "distributed/group/group.h"
#include "distributed/plan/plan.h"

namespace xylem {

// Collective: rank 0's plan on every rank, since ranks that choose differently hang; what the others pass is not read.
// Throws on every rank, naming the ranks, if a rank holds another one afterwards.
Plan share_plan(const Plan& plan, const Group& group);
// Collective over the world, with no collective under way. Measurements that `xylem bench collectives --save` left
// overrule the model. CPU tensors then take the plan's ring or tree; NCCL is asked through the tuner, and conflicts()
// of tuner.h tells what stands in the way.
Plan apply_plan(const Group& world, Device device, PlanOptions options = {});
// Hands a plan that all ranks share to the backend of the device.
void obey(const Plan& plan, Device device);

}  // namespace xylem
