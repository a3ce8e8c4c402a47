// SPDX-License-Identifier: Apache-2.0
// The flight recorder: the last few thousand collectives of this process, always on. Backends of Group report to it;
// the watchdog, the trace and the verdict after a hang read it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor/dtype.h"

namespace xylem::recorder {

struct Collective {
  std::string group;      // its name
  uint64_t sequence = 0;  // 1, 2, ... within the group, send and receive included
  std::string op;         // "all_reduce", "send to 3", ...
  DType dtype = f32;
  int64_t count = 0;      // elements this rank contributes
  std::string tag;        // what it is for: "bucket 3", "batch_norm"; from the innermost Tag
  std::string algorithm;  // "ring", "tree", ... where known
  int64_t enqueued_ns = 0, started_ns = 0, finished_ns = 0;  // steady clock; 0: not yet
};

// A collective was called; then started (it has left the queue) and finished. The handle is that of begin().
uint64_t begin(Collective c);
void started(uint64_t handle);
void finished(uint64_t handle);

// Names the collectives of a scope on this thread.
class Tag {
 public:
  explicit Tag(std::string name);
  ~Tag();
  Tag(const Tag&) = delete;

 private:
  std::string previous_;
};
std::string current_tag();

// What the host is doing, for the verdict on a rank that never arrives: "data loader", "checkpoint". Cheap.
class Activity {
 public:
  explicit Activity(const char* name);
  ~Activity();
  Activity(const Activity&) = delete;

 private:
  const char* previous_;
};
std::string current_activity();

std::vector<Collective> recent();  // oldest first

}  // namespace xylem::recorder
