// SPDX-License-Identifier: Apache-2.0
#include "distributed/launch/bind.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "distributed/topology/cpulist.h"

#ifdef XY_WITH_HWLOC
#include <hwloc.h>
#endif

namespace xylem {

std::vector<int> current_cpus() {
  std::vector<int> cpus;
  for (int n = 1024; n <= 1 << 16; n *= 2) {
    cpu_set_t* set = CPU_ALLOC(size_t(n));
    size_t bytes = CPU_ALLOC_SIZE(size_t(n));
    bool ok = sched_getaffinity(0, bytes, set) == 0;
    if (ok)
      for (int i = 0; i < n; ++i)
        if (CPU_ISSET_S(size_t(i), bytes, set)) cpus.push_back(i);
    CPU_FREE(set);
    if (ok) break;
  }
  return cpus;
}

std::vector<int> part_of_cores(const std::vector<std::vector<int>>& cores, int parts, int part) {
  std::vector<int> cpus;
  if (int(cores.size()) < parts) return cpus;
  size_t begin = cores.size() * size_t(part) / size_t(parts), end = cores.size() * size_t(part + 1) / size_t(parts);
  for (size_t c = begin; c < end; ++c) cpus.insert(cpus.end(), cores[c].begin(), cores[c].end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

std::vector<int> choose_cpus(const std::vector<BindRequest>& ranks, int local_rank,
                             const std::vector<std::vector<int>>& cores) {
  if (ranks.size() < 2) return {};
  for (const BindRequest& r : ranks)
    if (r.allowed != ranks[0].allowed) return {};
  const BindRequest& mine = ranks[size_t(local_rank)];
  // Those who want the same cores share them.
  int parts = 0, part = 0;
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i].near == mine.near) {
      if (int(i) < local_rank) ++part;
      ++parts;
    }
  auto usable = [&](const std::vector<int>& wanted) {
    std::vector<int> allowed = parse_cpulist(mine.allowed).value_or(std::vector<int>{});
    std::vector<std::vector<int>> list;
    for (const std::vector<int>& core : cores) {
      std::vector<int> cpus;
      for (int cpu : core)
        if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end() &&
            (wanted.empty() || std::find(wanted.begin(), wanted.end(), cpu) != wanted.end()))
          cpus.push_back(cpu);
      if (!cpus.empty()) list.push_back(cpus);
    }
    return list;
  };
  std::vector<int> near = part_of_cores(usable(parse_cpulist(mine.near).value_or(std::vector<int>{})), parts, part);
  if (!near.empty() || mine.near.empty()) return near;
  return part_of_cores(usable({}), int(ranks.size()), local_rank);  // a cgroup without CPUs near the GPU
}

std::vector<int> assign_gpus(const std::vector<int>& gpu_numa, const std::vector<int>& rank_numa) {
  std::vector<int> chosen(rank_numa.size(), -1);
  if (gpu_numa.empty()) return chosen;
  std::vector<bool> taken(gpu_numa.size(), false);
  for (size_t r = 0; r < rank_numa.size(); ++r)
    for (size_t g = 0; rank_numa[r] >= 0 && g < gpu_numa.size() && chosen[r] < 0; ++g)
      if (!taken[g] && gpu_numa[g] == rank_numa[r]) taken[g] = true, chosen[r] = int(g);
  size_t next = 0;
  for (int& c : chosen) {
    if (c >= 0) continue;
    size_t g = 0;
    while (g < taken.size() && taken[g]) ++g;
    if (g == taken.size()) g = next++ % taken.size();
    taken[g] = true;
    c = int(g);
  }
  return chosen;
}

#ifdef XY_WITH_HWLOC
namespace {

struct FreeTopology {
  void operator()(hwloc_topology* t) const { hwloc_topology_destroy(t); }
};
using HwTopology = std::unique_ptr<hwloc_topology, FreeTopology>;

HwTopology load(bool devices) {
  hwloc_topology_t t = nullptr;
  if (hwloc_topology_init(&t) != 0) return nullptr;
  HwTopology owner(t);
  if (devices) hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return hwloc_topology_load(t) == 0 ? std::move(owner) : nullptr;
}

struct Bitmap {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  ~Bitmap() { hwloc_bitmap_free(set); }
};

std::vector<int> members(hwloc_const_bitmap_t set) {
  std::vector<int> list;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) list.push_back(i);
  return list;
}

}  // namespace

std::vector<std::vector<int>> list_cores() {
  std::vector<std::vector<int>> cores;
  HwTopology t = load(false);
  if (!t) return cores;
  int n = hwloc_get_nbobjs_by_type(t.get(), HWLOC_OBJ_CORE);
  for (int i = 0; i < n; ++i)
    cores.push_back(members(hwloc_get_obj_by_type(t.get(), HWLOC_OBJ_CORE, unsigned(i))->cpuset));
  return cores;
}

std::string cpus_near(const std::string& pci) {
  if (pci.empty()) return "";
  HwTopology t = load(true);
  hwloc_obj_t device = t ? hwloc_get_pcidev_by_busidstring(t.get(), pci.c_str()) : nullptr;
  hwloc_obj_t place = device ? hwloc_get_non_io_ancestor_obj(t.get(), device) : nullptr;
  return place && place->cpuset ? format_cpulist(members(place->cpuset)) : "";
}

bool bind_process(const std::vector<int>& cpus) {
  HwTopology t = load(false);
  if (!t || cpus.empty()) return false;
  Bitmap set, nodes;
  for (int cpu : cpus) hwloc_bitmap_set(set.set, unsigned(cpu));
  if (hwloc_set_cpubind(t.get(), set.set, HWLOC_CPUBIND_PROCESS) != 0) return false;
  hwloc_cpuset_to_nodeset(t.get(), set.set, nodes.set);
  if (hwloc_get_nbobjs_by_type(t.get(), HWLOC_OBJ_NUMANODE) > 1)  // not strict: a full node falls back on others
    hwloc_set_membind(t.get(), nodes.set, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_PROCESS);
  return true;
}
#else
std::vector<std::vector<int>> list_cores() { return {}; }
std::string cpus_near(const std::string&) { return ""; }
bool bind_process(const std::vector<int>&) { return false; }
#endif

}  // namespace xylem
