// SPDX-License-Identifier: Apache-2.0
// What the sources of a topology share: from where devices sit and which links they have to how pairs reach each other.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/topology/topology.h"

namespace xylem {

// Where a device sits in the PCIe tree.
struct PciPlace {
  std::vector<PciAddress> bridges;  // above it, nearest first
  std::string root;                 // what is above the last bridge: the same text is the same host bridge
  std::optional<double> gbps;       // of the narrowest link up to the root
};

// Fills pairs with the PCIe classes. `places` holds every device, GPUs first. Two devices are PIX if no more than
// `pix_depth` bridges separate each from their common one: 1 where a switch is one bridge (NCCL's XML), 2 where its
// ports are (sysfs). Different roots are NODE on one NUMA node, else SYS, or unknown where a NUMA node is.
void derive_pci_pairs(Topology& t, const std::vector<PciPlace>& places, int pix_depth);

// The links of one GPU to one target, as the GPU tells it.
struct NvlinkEnd {
  int gpu = 0;                       // in Topology::gpus
  std::optional<PciAddress> target;  // of a GPU or a switch; none: a switch without address
  bool to_switch = false;
  int count = 1;
};

// Adds switches, links and the NVLink part of the pairs (over the PCIe part). GPUs with links to switches reach each
// other if they are of one host or `one_domain` says that the switches span hosts.
void add_nvlinks(Topology& t, const std::vector<NvlinkEnd>& ends, bool one_domain);

std::optional<double> nvlink_gbps(const GpuDevice& gpu);           // of one link, as NCCL counts it
std::optional<double> socket_link_gbps(const HostInfo& host);      // between CPU sockets, as NCCL counts it
void complete_from_name(GpuDevice& gpu);                           // what the model's name tells
std::optional<DevicePair> parse_pair_word(std::string_view word);  // "NV4", "PIX", "SOC", "?"; NV is a direct link
int generation_of_speed(std::string_view text);                    // "16.0 GT/s PCIe" -> 4; 0: unknown

}  // namespace xylem
