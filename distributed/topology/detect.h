// SPDX-License-Identifier: Apache-2.0
// Live detection: sysfs gives the PCIe tree, NICs, NUMA nodes and CPUs, NVML the GPUs and their links; both are joined
// by PCI address. `root` is put before /sys and /proc, so that a made-up machine can be detected too.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "distributed/topology/derive.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/topology.h"

namespace xylem {

struct Detection {
  Topology topology;
  Environment environment;
};
Detection detect();
// Joins what the hosts detected: pairs of different hosts are NET, or NVSwitch where an NVLink domain spans them.
Topology join_hosts(const std::vector<Topology>& hosts);

// ---- the sources ----------------------------------------------------------------------------------------------------

struct SysfsMachine {
  Topology topology;  // with pairs
  std::vector<PciPlace> gpu_places, nic_places;
  Environment environment;
};
SysfsMachine read_sysfs(const std::string& root);

// What NVML knows of the machine. Returns why there is nothing, or "".
std::string add_nvml(SysfsMachine& machine);
std::optional<PcieLink> nvml_current_pcie(const PciAddress& gpu);  // as it is trained now
struct LinkErrors {
  std::optional<uint64_t> nvlink, pcie;
};
LinkErrors nvml_link_errors(const PciAddress& gpu);  // since the driver was loaded

// Fills multicast; starts the CUDA driver, so not before CUDA_VISIBLE_DEVICES is set.
void read_multicast(Topology& topology);

// The NUMA node of a device where the kernel does not say; nullopt: several nodes, or not known.
std::optional<int> hwloc_numa_node(const PciAddress& device);

}  // namespace xylem
