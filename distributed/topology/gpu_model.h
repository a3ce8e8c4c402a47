// SPDX-License-Identifier: Apache-2.0
// What is known about GPUs by their name: NVLink and PCIe as the maker states them. Hints: a machine is judged by what
// it shows first, by how its GPUs differ from each other second, and by this table last.
#pragma once
#include <optional>
#include <string>

#include "distributed/topology/topology.h"

namespace xylem {

struct GpuModel {
  const char* key;   // found in the name that the driver gives
  int sm;            // 90 is compute capability 9.0
  int nvlinks;       // per GPU; 0: has none
  bool bridged;      // NVLink only through bridges that an owner may leave out
  double link_gbps;  // of one link, one direction, as `nvidia-smi nvlink -s` states it
  int pcie;          // generation; all have 16 lanes
  bool data_centre;  // keeps its PCIe width when idle
};

const GpuModel* find_gpu_model(const std::string& name);       // nullptr: not in the table
std::string gpu_name_of_pci_id(const std::string& device_id);  // "0x2335" -> "H200 SXM"; "" if unknown
double nvlink_gbps_of_sm(int sm);                              // of one link, as NCCL counts it: 20.6 on Hopper

}  // namespace xylem
