// SPDX-License-Identifier: Apache-2.0
// Carries the plan into NCCL. This library is itself a tuner plugin (ncclTunerPlugin_v5) that NCCL asks before every
// collective; it answers from an immutable plan that is the same on all ranks.
//
// What is pinned or measured is imposed; what is only predicted decides where NCCL's own estimate leaves it open
// (within 20 %), since NCCL knows its paths better than we do. An algorithm that NCCL marks as unavailable is never
// chosen.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "distributed/plan/plan.h"

namespace xylem::tuner {

// The plan of every group, or of one by its name. A plan for another number of ranks than a group has counts only as
// far as it is pinned. On all ranks alike, with no collective under way.
void set_plan(const Plan& plan);
void set_plan(const std::string& group, const Plan& plan);
void clear();

// Lives around the creation of an NCCL communicator, on the same thread: tells the plugin whose it is. Communicators
// are made one at a time. The first one points NCCL at this library.
class Creation {
 public:
  explicit Creation(const std::string& group);
  ~Creation();
  Creation(const Creation&) = delete;
};

// The other way, for one group created later: NCCL_ALGO for all_reduce while its communicator is made.
void set_environment_override(const std::string& group, std::optional<Algorithm> algorithm);

// What was chosen for the latest collective of a group, "ring simple"; "" before the first and without the plugin.
std::string last_choice(const std::string& group);
// What stands between the plan and NCCL, in words: a tuner or an NCCL_ALGO of the user's.
std::vector<std::string> conflicts();
bool asked();  // NCCL has loaded the plugin

}  // namespace xylem::tuner
