// SPDX-License-Identifier: Apache-2.0
// Findings: what is wrong with a machine, or will surprise a job, said so that a person can act on it. They are made
// from a topology and the surroundings of the process, both of them plain data, so that any machine can be judged
// anywhere. docs/topology.md lists the codes.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "distributed/topology/topology.h"

namespace xylem {

struct NetInterface {
  std::string name;
  bool up = false, has_address = false;
  std::string address = {};  // the first one
};

// What surrounds a process of one host. As in a topology, what is not known is empty.
struct Environment {
  std::map<std::string, std::string> variables;  // NCCL_*, CUDA_*, UCX_*, OMPI_*, ...
  std::optional<int64_t> shm_bytes;              // size of /dev/shm
  std::optional<int64_t> memlock_bytes;          // INT64_MAX: unlimited
  std::optional<int64_t> open_files;
  std::string allowed_cpus;  // of the process, a cpulist
  std::string online_cpus;   // of the machine
  std::optional<bool> iommu_translates;
  std::optional<std::vector<PciAddress>> acs_redirects;  // bridges that send peer traffic up to the root; root reads it
  std::vector<NetInterface> interfaces;
  bool topo_file_exists = true;      // of NCCL_TOPO_FILE
  std::optional<int> nvidia_on_pci;  // GPUs of NVIDIA that the PCI bus shows
  std::string driver_error;          // why NVML gives no GPUs; ""
  int ranks_on_host = 1;             // processes of the job
  int hosts_of_job = 1;
};

// Of the machines alone.
std::vector<Finding> find_topology_problems(const Topology& t);
// Of one host's surroundings.
std::vector<Finding> find_environment_problems(const Topology& t, const Environment& e);
// Both, the worst first.
std::vector<Finding> find_problems(const Topology& t, const Environment& e);

// Of a job: how many ranks each host has, and groups of GPUs (in Topology::gpus) that leave their island.
std::vector<Finding> find_rank_problems(const std::vector<int>& ranks_per_host);
std::vector<Finding> find_group_problems(const Topology& t, const std::vector<int>& gpus, const std::string& group);

void sort_findings(std::vector<Finding>& findings);                 // the worst first, else in order
std::string format_findings(const std::vector<Finding>& findings);  // for a terminal; "" if there is none

// In the order of the bits of NVML's fabric health mask: "bandwidth degraded", ...; empty: healthy or not told.
std::vector<std::string> fabric_health_problems(uint32_t mask);

}  // namespace xylem
