// SPDX-License-Identifier: Apache-2.0
#include "distributed/launch/job_trace.h"

#include <exception>
#include <string>

#include "core/util/check.h"
#include "distributed/group/group.h"
#include "distributed/record/recorder.h"
#include "distributed/record/trace.h"
#include "distributed/world/world.h"

namespace xylem {

void finish_trace() {
  const std::string file = trace::stop();
  if (file.empty()) return;
  const Group all = Group::world();
  // Ranks of the host of rank 0 share its clock; others count from the barrier that start() came after.
  const std::string first = all.broadcast_string(world().host + " " + std::to_string(trace::started_ns()), 0);
  const size_t space = first.rfind(' ');
  int64_t zero = first.substr(0, space) == world().host ? std::stoll(first.substr(space + 1)) : trace::started_ns();
  zero -= 10'000'000;  // ranks leave the barrier one after the other, and viewers want positive times
  std::string error;   // all ranks go on to the barrier
  try {
    trace::write(all.size() > 1 ? file + ".rank" + std::to_string(all.rank()) : file, zero);
  } catch (const std::exception& e) {
    error = e.what();
  }
  recorder::keep_all(false);
  if (all.size() > 1) {
    all.barrier();
    if (all.rank() == 0) trace::join(file, all.size());
  }
  XY_CHECK(error.empty(), error);
}

}  // namespace xylem
