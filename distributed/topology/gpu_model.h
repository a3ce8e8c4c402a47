// SPDX-License-Identifier: Apache-2.0
// What is known about GPUs by their name: NVLink, PCIe, memory and peaks as the maker states them, the one table of the
// project. As to links it is a hint: a machine is judged by what it shows first, by how its GPUs differ from each other
// second, and by this table last.
#pragma once
#include <span>
#include <string>

namespace xylem {

// Figures that are 0 are not known.
struct GpuModel {
  const char* key;       // its name without the maker's brands: "A100 SXM 40GB"
  int sm;                // 90 is compute capability 9.0
  int nvlinks;           // per GPU; 0: has none
  int bridge_links;      // of one bridge between cards, which an owner may leave out; 0: NVLink is on the board
  double link_gbps;      // of one link, one direction, as `nvidia-smi nvlink -s` states it
  int pcie;              // generation; all have 16 lanes
  bool data_centre;      // keeps its PCIe width when idle
  double memory_gb;      // 10^9 bytes
  double memory_gbps;    // GB/s of device memory
  double half_tflops;    // dense products of fp16 and bf16 with f32 sums, 10^12 operations a second
  double tf32_tflops;    // the same of tf32; of fp32 where there is no tf32
  double single_tflops;  // of fp32 without tensor cores
  bool bridged() const { return bridge_links > 0; }
};

// Of the name that the driver gives ("NVIDIA A100-SXM4-40GB") or a person writes ("A100 SXM"). Every word of the name
// must be accounted for, so that a relative of a known GPU (a laptop's, a MIG slice, an A4000 beside an A40) stays
// unknown: nullptr. A name that leaves out its form or memory ("A100") means the first such model of the table.
const GpuModel* find_gpu_model(const std::string& name);
std::span<const GpuModel> gpu_models();
std::string gpu_name_of_pci_id(const std::string& device_id);  // "0x2335" -> "H200"; "" if unknown
double nvlink_gbps_of_sm(int sm);                              // of one link, as NCCL counts it: 20.6 on Hopper

}  // namespace xylem
