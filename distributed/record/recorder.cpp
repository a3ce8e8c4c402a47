// SPDX-License-Identifier: Apache-2.0
#include "distributed/record/recorder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "core/util/hash.h"

namespace xylem::recorder {
namespace {

// One lock: a collective takes microseconds at least, an entry a fraction of one.
struct State {
  std::mutex lock;
  std::vector<Collective> ring = std::vector<Collective>(kCapacity);
  uint64_t next = 1;                          // handle; entry h lies at ring[h % kCapacity]
  uint64_t open = 1;                          // all before it have finished
  std::map<std::string, uint64_t> sequences;  // by group, or group and peer
  std::map<std::string, Signature> signatures;
  std::map<std::string, std::vector<int>> groups;
  bool keep = false;
  uint64_t kept_from = 1;
  std::vector<Collective> kept;
};
State& state() {
  static State& s = *new State;  // outlives every other static: collectives may end late
  return s;
}

const std::thread::id main_thread = std::this_thread::get_id();
std::atomic<const char*> activity = "";
std::atomic<bool> at_end = false;
thread_local std::string tag;

bool point_to_point(const std::string& op) { return op.starts_with("send ") || op.starts_with("receive "); }

template <class F>
void update(uint64_t handle, F&& f) {
  State& s = state();
  std::lock_guard guard(s.lock);
  if (handle > 0 && handle < s.next && handle + kCapacity >= s.next) f(s.ring[handle % kCapacity]);
}

}  // namespace

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void group(const std::string& name, std::vector<int> world_ranks) {
  State& s = state();
  std::lock_guard guard(s.lock);
  s.groups[name] = std::move(world_ranks);
}

std::map<std::string, std::vector<int>> groups() {
  State& s = state();
  std::lock_guard guard(s.lock);
  return s.groups;
}

uint64_t begin(Collective c) {
  if (c.tag.empty()) c.tag = tag;
  if (c.enqueued_ns == 0) c.enqueued_ns = now_ns();
  State& s = state();
  std::lock_guard guard(s.lock);
  if (point_to_point(c.op)) {
    c.sequence = ++s.sequences[c.group + " " + c.op];
  } else {
    c.sequence = ++s.sequences[c.group];
    Signature& sum = s.signatures[c.group];
    sum.count = c.sequence;
    // Counts of all_to_all differ between ranks by design.
    for (char letter : c.op) sum.hash = mix(sum.hash, uint64_t(letter));
    sum.hash = mix(sum.hash, c.op == "all_to_all" ? 0 : uint64_t(c.count));
    sum.hash = mix(sum.hash, uint64_t(c.dtype));
  }
  uint64_t handle = s.next++;
  Collective& slot = s.ring[handle % kCapacity];
  if (s.keep && slot.sequence > 0 && handle >= kCapacity + s.kept_from) s.kept.push_back(std::move(slot));
  slot = std::move(c);
  return handle;
}

void started(uint64_t handle, int64_t when_ns) {
  int64_t when = when_ns ? when_ns : now_ns();
  // A GPU's times are brought to the host's clock, to some microseconds.
  update(handle, [&](Collective& c) { c.started_ns = std::max(when, c.enqueued_ns); });
}

void finished(uint64_t handle, int64_t when_ns) {
  int64_t when = when_ns ? when_ns : now_ns();
  update(handle, [&](Collective& c) {
    if (c.started_ns == 0) c.started_ns = c.enqueued_ns;
    c.finished_ns = std::max(when, c.started_ns);
  });
}

void chose(uint64_t handle, const std::string& algorithm) {
  update(handle, [&](Collective& c) { c.algorithm = algorithm; });
}

Collective captured(uint64_t handle) {
  Collective copy;
  update(handle, [&](Collective& c) {
    c.graph = true;
    copy = c;
    c.started_ns = c.finished_ns = c.enqueued_ns;
  });
  return copy;
}

std::vector<uint64_t> replay(const std::vector<Collective>& graph) {
  std::vector<uint64_t> handles;
  int64_t now = now_ns();
  for (Collective c : graph) {
    c.enqueued_ns = now;
    handles.push_back(begin(std::move(c)));
  }
  return handles;
}

Tag::Tag(std::string name) : previous_(std::exchange(tag, std::move(name))) {}
Tag::~Tag() { tag = std::move(previous_); }
std::string current_tag() { return tag; }

Activity::Activity(const char* name) : previous_(nullptr) {
  if (std::this_thread::get_id() == main_thread) previous_ = activity.exchange(name, std::memory_order_relaxed);
}
Activity::~Activity() {
  if (previous_) activity.store(previous_, std::memory_order_relaxed);
}
std::string current_activity() { return activity.load(std::memory_order_relaxed); }

void set_work_finished(bool finished) { at_end.store(finished, std::memory_order_relaxed); }
bool work_finished() { return at_end.load(std::memory_order_relaxed); }

std::vector<Collective> recent() {
  State& s = state();
  std::lock_guard guard(s.lock);
  std::vector<Collective> list;
  for (uint64_t h = s.next > kCapacity ? s.next - kCapacity : 1; h < s.next; ++h) list.push_back(s.ring[h % kCapacity]);
  return list;
}

int64_t oldest_unfinished_ns() {
  State& s = state();
  std::lock_guard guard(s.lock);
  if (s.next > kCapacity) s.open = std::max(s.open, s.next - kCapacity);
  while (s.open < s.next && s.ring[s.open % kCapacity].finished_ns != 0) ++s.open;
  return s.open == s.next ? 0 : s.ring[s.open % kCapacity].enqueued_ns;
}

Signature signature(const std::string& group) {
  State& s = state();
  std::lock_guard guard(s.lock);
  auto found = s.signatures.find(group);
  return found == s.signatures.end() ? Signature{} : found->second;
}

void keep_all(bool on) {
  State& s = state();
  std::lock_guard guard(s.lock);
  s.keep = on;
  s.kept_from = s.next;
  s.kept.clear();
}

std::vector<Collective> take() {
  State& s = state();
  std::lock_guard guard(s.lock);
  std::vector<Collective> list = std::move(s.kept);
  s.kept.clear();
  uint64_t first = std::max(s.kept_from, s.next > kCapacity ? s.next - kCapacity : 1);
  for (uint64_t h = first; h < s.next; ++h) list.push_back(s.ring[h % kCapacity]);
  s.kept_from = s.next;
  return list;
}

}  // namespace xylem::recorder
