// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan/tuner.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "distributed/plan/tuner_abi.h"
#include "distributed/world/world.h"

namespace xylem::tuner {
namespace {

using Shared = std::shared_ptr<const Plan>;
constexpr float kOpen = 1.2f;  // a prediction decides within so much of NCCL's own best

// One communicator.
struct Context {
  std::string group;
  size_t ranks = 0, nodes = 0;
  std::atomic<Shared> plan;
  std::mutex mutex;  // of what follows
  std::string last;
  std::set<std::pair<int, size_t>> dumped;
};

struct State {
  std::mutex mutex;     // of what follows
  std::mutex creation;  // held by a Creation
  std::string pending;  // the group whose communicator is being made
  Shared all;
  std::map<std::string, Shared> own;
  std::map<std::string, Algorithm> overrides;
  std::set<Context*> contexts;
  std::map<std::string, std::string> last;  // of groups whose communicator is gone
  std::vector<std::string> conflicts;
  bool installed = false, environment_set = false;
  std::atomic<bool> asked = false;
};
State& state() {
  static State& s = *new State;
  return s;
}

Shared plan_of(const State& s, const std::string& group) {
  auto own = s.own.find(group);
  return own != s.own.end() ? own->second : s.all;
}

void spread(State& s) {
  for (Context* c : s.contexts) c->plan.store(plan_of(s, c->group));
}

// NCCL opens the plugin by path at the first communicator and never tries again.
void install(State& s) {
  if (std::exchange(s.installed, true)) return;
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO"})
    if (const char* value = std::getenv(name); value && *value)
      s.conflicts.push_back(std::string(name) + "=" + value +
                            " is set: what it excludes NCCL does not use, whatever the plan says");
  const char* user = std::getenv("NCCL_TUNER_PLUGIN");
  if (user && *user) {
    s.conflicts.push_back(std::string("NCCL_TUNER_PLUGIN=") + user +
                          " is set: NCCL asks that tuner, and the plan is only for reading; unset it to use the plan");
    return;
  }
  Dl_info self{};
  char path[PATH_MAX];
  if (dladdr(reinterpret_cast<void*>(&install), &self) && self.dli_fname && realpath(self.dli_fname, path))
    setenv("NCCL_TUNER_PLUGIN", path, 1);
  else
    s.conflicts.push_back("the path of this library is not known, so NCCL cannot load the plan from it");
}

// NCCL's estimates for one collective, us; negative where a way is not available.
class Table {
 public:
  Table(float** table, int algorithms, int protocols)
      : cells_(reinterpret_cast<float*>(table)), algorithms_(algorithms), protocols_(protocols) {}

  float* cell(int a, int p) const {
    if (a < 0 || a >= algorithms_ || p < 0 || p >= protocols_) return nullptr;
    float* c = cells_ + a * protocols_ + p;
    return *c >= 0 ? c : nullptr;
  }
  // The cheapest of one algorithm, or of all (-1).
  std::pair<int, int> best(int algorithm = -1) const {
    std::pair found{-1, -1};
    float least = 0;
    for (int a = 0; a < algorithms_; ++a)
      for (int p = 0; p < protocols_; ++p)
        if (float* c = cell(a, p); c && (algorithm < 0 || a == algorithm) && (found.first < 0 || *c < least)) {
          found = {a, p};
          least = *c;
        }
    return found;
  }
  nlohmann::json json() const {
    auto rows = nlohmann::json::array();
    for (int a = 0; a < algorithms_; ++a)
      rows.push_back(std::vector<float>(cells_ + a * protocols_, cells_ + (a + 1) * protocols_));
    return rows;
  }

 private:
  float* cells_;
  int algorithms_, protocols_;
};

void impose(const PlanEntry& e, bool same_ranks, const Table& table, int* channels) {
  if (!same_ranks && e.basis != Basis::pinned) return;
  const int a = int(e.algorithm);
  float* cell = e.protocol ? table.cell(a, int(*e.protocol)) : nullptr;
  if (!cell && (!e.protocol || e.basis == Basis::pinned)) {
    auto [algorithm, protocol] = table.best(a);
    cell = table.cell(algorithm, protocol);
  }
  if (!cell) return;
  auto [best_algorithm, best_protocol] = table.best();
  if (e.basis == Basis::predicted && *cell > kOpen * *table.cell(best_algorithm, best_protocol)) return;
  *cell = 0;
  if (e.channels > 0 && same_ranks) *channels = e.channels;
}

// XY_TUNER_DUMP=file: NCCL's own table for every size that comes up, one line of JSON each, from rank 0.
const char* dump_file() {
  static const char* file = std::getenv("XY_TUNER_DUMP");
  return file && *file && world().rank == 0 ? file : nullptr;
}
void dump(const nlohmann::json& line) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::ofstream(dump_file(), std::ios::app) << line.dump() << '\n';
}

int init(void** context, uint64_t, size_t ranks, size_t nodes, ncclTunerLog_v5, ncclTunerDomains_v5*,
         ncclTunerConstants_v5*) noexcept {
  try {
    State& s = state();
    auto* c = new Context;
    c->ranks = ranks;
    c->nodes = nodes;
    std::lock_guard lock(s.mutex);
    s.asked = true;
    c->group = s.pending;
    c->plan.store(plan_of(s, c->group));
    s.contexts.insert(c);
    *context = c;
  } catch (...) {
    *context = nullptr;  // then NCCL decides alone
  }
  return 0;
}

int get_info(void* context, int function, size_t bytes, int operations, float** cells, int algorithms, int protocols,
             int, int* channels) noexcept {
  try {
    auto* c = static_cast<Context*>(context);
    if (!c || !cells || function < 0 || function > int(CollectiveKind::all_reduce)) return 0;
    const auto kind = CollectiveKind(function);
    Table table(cells, algorithms, protocols);
    nlohmann::json before;
    if (dump_file()) before = table.json();
    if (Shared plan = c->plan.load())
      if (const PlanEntry* e = plan->find(kind, int64_t(std::min<size_t>(bytes, INT64_MAX - 1))))
        impose(*e, size_t(plan->ranks) == c->ranks, table, channels);
    auto [a, p] = table.best();
    std::string choice;
    if (a >= 0 && a < 7 && p < 3) choice = std::string(name_of(Algorithm(a))) + " " + name_of(Protocol(p));
    std::lock_guard lock(c->mutex);
    c->last = choice;
    if (dump_file() && c->dumped.insert({function, bytes}).second)
      dump({{"group", c->group},
            {"ranks", c->ranks},
            {"nodes", c->nodes},
            {"collective", name_of(kind)},
            {"bytes", bytes},
            {"operations", operations},
            {"table", before},
            {"choice", choice}});
  } catch (...) {
    return 0;  // an error would fail the collective; NCCL's own choice is still there
  }
  return 0;
}

int finalize(void* context) noexcept {
  try {
    auto* c = static_cast<Context*>(context);
    State& s = state();
    std::lock_guard lock(s.mutex);
    if (c) s.last[c->group] = c->last;
    s.contexts.erase(c);
    delete c;
  } catch (...) {
    return 0;
  }
  return 0;
}

}  // namespace

void set_plan(const Plan& plan) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  install(s);
  s.all = std::make_shared<const Plan>(plan);
  spread(s);
}

void set_plan(const std::string& group, const Plan& plan) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.own[group] = std::make_shared<const Plan>(plan);
  spread(s);
}

void clear() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.all.reset();
  s.own.clear();
  s.overrides.clear();
  spread(s);
}

Creation::Creation(const std::string& group) {
  State& s = state();
  s.creation.lock();
  std::lock_guard lock(s.mutex);
  install(s);
  s.pending = group;
  auto forced = s.overrides.find(group);
  const char* user = std::getenv("NCCL_ALGO");
  if (forced != s.overrides.end() && !(user && *user)) {
    std::string name = name_of(forced->second);
    std::erase(name, '_');
    setenv("NCCL_ALGO", ("allreduce:" + name).c_str(), 1);
    s.environment_set = true;
  }
}

Creation::~Creation() {
  State& s = state();
  {
    std::lock_guard lock(s.mutex);
    s.pending.clear();
    if (std::exchange(s.environment_set, false)) unsetenv("NCCL_ALGO");
  }
  s.creation.unlock();
}

void set_environment_override(const std::string& group, std::optional<Algorithm> algorithm) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (algorithm)
    s.overrides[group] = *algorithm;
  else
    s.overrides.erase(group);
}

std::string last_choice(const std::string& group) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  for (Context* c : s.contexts)
    if (c->group == group) {
      std::lock_guard inner(c->mutex);
      return c->last;
    }
  auto gone = s.last.find(group);
  return gone == s.last.end() ? "" : gone->second;
}

std::vector<std::string> conflicts() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return s.conflicts;
}

bool asked() { return state().asked; }

}  // namespace xylem::tuner

ncclTuner_v5_t ncclTunerPlugin_v5 = {"xylem", xylem::tuner::init, xylem::tuner::get_info, xylem::tuner::finalize};
