// SPDX-License-Identifier: Apache-2.0
// One plan for all: ranks that choose differently hang.
#pragma once
#include "distributed/group/group.h"
#include "distributed/plan/plan.h"

namespace xylem {

// Collective: rank 0's plan on every rank; what the others pass is not read. Throws on every rank, naming the ranks, if
// a rank holds another one afterwards.
Plan share_plan(const Plan& plan, const Group& group);

}  // namespace xylem
