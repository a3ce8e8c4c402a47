// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan/share.h"

#include "core/util/check.h"

namespace xylem {

Plan share_plan(const Plan& plan, const Group& group) {
  if (group.size() == 1) return plan;
  Plan shared = Plan::from_json(group.broadcast_string(group.rank() == 0 ? plan.to_json() : "", 0));
  auto hashes = group.gather_strings(shared.hash());
  std::string others;
  for (size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0]) others += (others.empty() ? "" : ", ") + std::to_string(r);
  XY_CHECK(others.empty(), "the plan of ranks ", others, " of group '", group.name(),
           "' differs from that of rank 0: do all ranks run the same build?");
  return shared;
}

}  // namespace xylem
