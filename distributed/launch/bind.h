// SPDX-License-Identifier: Apache-2.0
// Which CPUs a rank runs on. A launcher that binds nothing (mpirun --bind-to none) leaves it to us: the cores near a
// GPU are shared out among the ranks whose GPU is there, the cores of a host without GPUs among all its ranks.
#pragma once
#include <string>
#include <vector>

namespace xylem {

std::vector<int> current_cpus();  // this process may use, ascending

// The CPUs of part `part` of `parts` of some cores (each the CPUs of its hardware threads), neighbours together; none
// if there are fewer cores than parts.
std::vector<int> part_of_cores(const std::vector<std::vector<int>>& cores, int parts, int part);

// What the ranks of a host say before they bind: the CPUs they may use, and those near their GPU ("" without one).
struct BindRequest {
  std::string allowed, near;
};
// The CPUs of rank `local_rank` among `ranks`; none where it is better left alone: a single rank, masks that a launcher
// has made different already, or too few cores. `cores` are those of the host.
std::vector<int> choose_cpus(const std::vector<BindRequest>& ranks, int local_rank,
                             const std::vector<std::vector<int>>& cores);

// These ask hwloc and do nothing without it.
std::vector<std::vector<int>> list_cores();       // of the host, in the order of the machine
std::string cpus_near(const std::string& pci);    // of a PCI device, "" unknown
bool bind_process(const std::vector<int>& cpus);  // all its threads, and new memory to the NUMA nodes of these CPUs

// The GPU of each rank of a host. GPUs are given by their NUMA node (-1 unknown), ranks by the node of the CPUs they
// may use (-1: several). A rank bound to one node gets a GPU there; everyone else gets those left, in order. More ranks
// than GPUs: GPUs are shared in turn.
std::vector<int> assign_gpus(const std::vector<int>& gpu_numa, const std::vector<int>& rank_numa);

}  // namespace xylem
