// SPDX-License-Identifier: Apache-2.0
// The flight recorder: the last few thousand collectives of this process, always on. Backends of Group report to it;
// the watchdog, the trace and the verdict after a hang read it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/tensor/dtype.h"

namespace xylem::recorder {

inline constexpr size_t kCapacity = 4096;

struct Collective {
  std::string group = {};  // its name
  // Given by begin(): 1, 2, ... among the collectives of the group, the same on all its ranks if they agree. Sends and
  // receives are counted apart for each peer, so that the fifth "send to 3" of rank 0 meets the fifth "receive from 0"
  // of rank 3.
  uint64_t sequence = 0;
  std::string op = {};  // "all_reduce", "send to 3", "receive from 0" (ranks of the group)
  DType dtype = f32;
  int64_t count = 0;     // elements this rank contributes
  std::string tag = {};  // what it is for: "bucket 3", "batch_norm"; begin() takes the innermost Tag if it is empty
  std::string algorithm = {};  // "ring", "tree", ... where known
  bool graph = false;          // in a CUDA graph: called and started with a replay of the whole
  int64_t enqueued_ns = 0, started_ns = 0, finished_ns = 0;  // steady clock; 0: not yet
};

// A group exists; its world ranks tell the verdict who ought to have come. Names must be unique within this process.
void group(const std::string& name, std::vector<int> world_ranks);
std::map<std::string, std::vector<int>> groups();

// A collective was called; then started (it has left the queue) and finished. The handle is that of begin(). Times
// other than now (of GPU events) may be given.
uint64_t begin(Collective c);
void started(uint64_t handle, int64_t when_ns = 0);
void finished(uint64_t handle, int64_t when_ns = 0);
void chose(uint64_t handle, const std::string& algorithm);  // known only once it was called
int64_t now_ns();

// CUDA graphs. A collective that is captured does not run then: captured() ends its entry, and returns what replay()
// enters anew each time the graph is launched, all of it as called at once. The handles are as those of begin().
Collective captured(uint64_t handle);
std::vector<uint64_t> replay(const std::vector<Collective>& graph);

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

// What the main thread is doing, for the verdict on a rank that never arrives: "the data loader", "a checkpoint".
// Cheap; on other threads it does nothing. The name must be a literal.
class Activity {
 public:
  explicit Activity(const char* name);
  ~Activity();
  Activity(const Activity&) = delete;

 private:
  const char* previous_;
};
std::string current_activity();

// The main thread has come to the end of its work, and only waits until the other ranks have.
void set_work_finished(bool finished);
inline constexpr const char* kAtEnd = "the end of the run";  // tag of the collectives in which it waits
bool work_finished();

std::vector<Collective> recent();  // at most kCapacity, oldest first
int64_t oldest_unfinished_ns();    // when it was called; 0: all have finished

// Of each group's collectives so far (operation, type, size, in order): equal on all ranks that agree.
struct Signature {
  uint64_t count = 0, hash = 0;
  bool operator==(const Signature&) const = default;
};
Signature signature(const std::string& group);

// While on, collectives that leave the ring are kept too; take() gives all since then, oldest first.
void keep_all(bool on);
std::vector<Collective> take();

}  // namespace xylem::recorder
