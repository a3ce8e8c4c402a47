// SPDX-License-Identifier: Apache-2.0
// From what every rank recorded to a sentence that names the rank at fault. Nothing here touches the job.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "distributed/record/recorder.h"

namespace xylem::watchdog {

enum class RankState {
  answered,  // its watchdog wrote what follows
  stopped,   // its process exists but is halted (SIGSTOP, a debugger)
  gone,      // its process is no more
  silent,    // no answer, and nobody can see its process
};

struct RankDump {
  int rank = 0;
  std::string host;
  int64_t pid = 0;
  RankState state = RankState::answered;
  std::string error;      // the exception that ends it, or the signal that ended it
  std::string unread;     // silent: why its answer could not have come
  int exit_code = 0;      // that the exception asks for
  bool finished = false;  // it came to the end of its work
  std::string activity;   // what its main thread is doing outside of communication: "the data loader"
  int64_t time_ns = 0;    // steady clock of its host
  std::map<std::string, std::vector<int>> groups;  // world ranks by name
  std::vector<recorder::Collective> collectives;   // oldest first
  std::map<int, RankState> peers;                  // of the same host, as this rank sees them
};

std::string to_json(const RankDump& dump, const std::string& job);
// Throws if it is not a dump of `job`.
RankDump parse_dump(const std::string& json, const std::string& job);

// One or more sentences, the cause first. `dumps` has an entry for every rank of the job, in order.
std::string verdict(const std::vector<RankDump>& dumps);

// "rank 3", "ranks 0-2", "ranks 0, 1 and 5"
std::string name_ranks(const std::vector<int>& ranks);
// "all_reduce #812 (bucket 3, f32 x 6553600)", "... of world/data" unless the group is the world
std::string describe(const recorder::Collective& c);

}  // namespace xylem::watchdog
