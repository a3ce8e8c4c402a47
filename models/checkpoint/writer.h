// SPDX-License-Identifier: Apache-2.0
// Writes one checkpoint from copies in host memory: what the background thread of Checkpoints does. Processes meet in
// files alone, so no message travels from that thread.
//
// Every rank writes its own files into an aside folder and then rank<r>.json, a report of what it wrote. Rank 0 waits
// for all reports, merges them into manifest.json, state.json and DONE, and renames the folder. Whoever stops at any
// moment leaves the earlier checkpoints as they were and an aside folder, which is finished later (recover.h) or
// removed.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/random/rng.h"
#include "models/checkpoint/piece.h"

namespace xylem::checkpoint {

struct Job {
  std::string dir;      // that holds the checkpoints
  std::string attempt;  // the same text on all ranks and another in every run of the program
  int64_t step = 0, keep = 0;
  double mb_per_second = 0;  // that this rank writes at most; 0: no limit
  int rank = 0, size = 1;
  std::vector<Piece> pieces;  // what this rank saves, in host memory
  RngState random = {};
  std::optional<int64_t> ema_updates = {};
  std::map<std::string, std::string> extra = {};
};

// Makes the aside folder, so that from here on this save can be finished by others.
void begin(const Job& job);

// Returns the bytes this rank has written. `hurry`: the process is failing, so others are not waited for much longer.
uint64_t write(const Job& job, const std::atomic<bool>& hurry);

// A save that has not come to its end.
struct Aside {
  int64_t step = 0;
  std::string attempt;
  bool operator==(const Aside&) const = default;
};
std::string aside_path(const std::string& dir, const Aside& aside);
std::vector<Aside> list_asides(const std::string& dir);  // by step, ascending
// Whether a rank has written its part.
bool reported(const std::string& dir, const Aside& aside, int rank);
// Gives the folder its name if all that it lacks is that.
bool publish_if_done(const std::string& dir, const Aside& aside);

// Removes aside folders that other attempts have left behind.
void remove_leftovers(const std::string& dir, const std::string& attempt);

std::vector<int64_t> list_steps(const std::string& dir);  // ascending

}  // namespace xylem::checkpoint
