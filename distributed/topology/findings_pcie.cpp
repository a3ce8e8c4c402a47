// SPDX-License-Identifier: Apache-2.0
// PCIe: links trained below what card and slot can do, bridges and trees that a hypervisor made up, peers.
#include <algorithm>
#include <cstdio>
#include <set>

#include "distributed/topology/findings_internal.h"
#include "distributed/topology/gpu_model.h"

namespace xylem::detail {
namespace {

const PciBridge* bridge_at(const Topology& t, int host, const std::optional<PciAddress>& pci) {
  for (const PciBridge& b : t.bridges)
    if (pci && b.host == host && b.pci == *pci) return &b;
  return nullptr;
}

// One lane of the first generation, above a card that has more or hides what it has (width 0): no such slot exists,
// QEMU's bridges say so.
bool is_bogus(const PciBridge& b, const GpuDevice& g) {
  return b.link_max.generation == 1 && b.link_max.width == 1 && g.pcie_max.width != 1;
}

std::string link_name(const PcieLink& link) {
  return "Gen" + std::to_string(link.generation) + " x" + std::to_string(link.width);
}

void judge_width(const Topology& t, int i, const PciBridge* slot, Findings& out) {
  const GpuDevice& g = t.gpus[size_t(i)];
  const GpuModel* model = find_gpu_model(g.name);
  // Consumer cards may narrow their link when idle.
  bool steady = g.pcie_judged || !model || model->data_centre;
  int slot_width = slot ? slot->link_max.width : 0;
  if (!steady || g.pcie.width <= 0 || g.pcie_max.width <= 0 || g.pcie.width >= g.pcie_max.width) return;
  std::string name = t.device_name(i);
  bool narrow_slot = slot_width > 0 && slot_width <= g.pcie.width;
  std::string evidence = "trained x" + std::to_string(g.pcie.width) + ", the card can x" +
                         std::to_string(g.pcie_max.width) +
                         (slot_width ? ", the slot x" + std::to_string(slot_width) : "");
  if (g.host_copy_gbps) evidence += ", measured " + number(*g.host_copy_gbps) + " GB/s";
  std::string impact = "copies from and to the host, and collectives over PCIe, run at " +
                       std::to_string(100 * g.pcie.width / g.pcie_max.width) +
                       " % of the speed; NCCL counts the card as healthy";
  out.push_back({"PCIE_WIDTH",
                 Severity::warning,
                 {name},
                 name + " runs on x" + std::to_string(g.pcie.width) + " of x" + std::to_string(g.pcie_max.width) +
                     (narrow_slot ? ": its slot has no more lanes" : " lanes"),
                 evidence,
                 impact,
                 narrow_slot ? "move the card to a slot with x" + std::to_string(g.pcie_max.width) +
                                   ", or change the bifurcation in the BIOS"
                             : "seat the card anew, check riser and bifurcation in the BIOS"});
}

void judge_generation(const Topology& t, int i, const PciBridge* slot, std::vector<int>& unjudged, Findings& out) {
  const GpuDevice& g = t.gpus[size_t(i)];
  int possible = g.pcie_max.generation;
  if (slot && slot->link_max.generation > 0) possible = std::min(possible, slot->link_max.generation);
  if (g.pcie.generation <= 0 || possible <= 0) return;
  if (!g.pcie_judged) {
    if (g.pcie.generation < possible) unjudged.push_back(i);
    return;
  }
  if (g.pcie.generation >= possible) return;
  std::string name = t.device_name(i);
  out.push_back({"PCIE_GENERATION",
                 Severity::warning,
                 {name},
                 name + " runs at PCIe Gen" + std::to_string(g.pcie.generation) + " of Gen" + std::to_string(possible) +
                     " under load",
                 "read while a copy ran: " + link_name(g.pcie) + " of " + link_name(g.pcie_max) +
                     (g.host_copy_gbps ? ", measured " + number(*g.host_copy_gbps) + " GB/s" : ""),
                 "copies from and to the host, and collectives over PCIe, run at a fraction of the speed",
                 "set the slot's speed to Auto or Gen" + std::to_string(possible) +
                     " in the BIOS, check riser cables; look for rising replay counters (nvidia-smi -q)"});
}

void judge_copy(const Topology& t, int i, Findings& out) {
  const GpuDevice& g = t.gpus[size_t(i)];
  double possible = g.pcie_max.gbps();
  if (!g.host_copy_gbps || possible <= 0 || *g.host_copy_gbps >= 0.6 * possible) return;
  std::string name = t.device_name(i);
  bool told = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
    return (f.code == "PCIE_WIDTH" || f.code == "PCIE_GENERATION") && f.subjects[0] == name;
  });
  if (told) return;
  out.push_back({"PCIE_SLOW",
                 Severity::warning,
                 {name},
                 "copies from the host to " + name + " reach " + number(*g.host_copy_gbps) + " GB/s",
                 link_name(g.pcie_max) + " usually gives " + number(possible) + " GB/s",
                 "data loading, offloading and collectives through the host are slow",
                 "check that the process runs on the CPUs near the GPU, that the IOMMU passes through (iommu=pt), and "
                 "the link (nvidia-smi -q, PCI section) under load"});
}

}  // namespace

void find_pcie_problems(const Topology& t, Findings& out) {
  std::vector<int> unjudged, unreadable, bogus;
  for (int i = 0; i < int(t.gpus.size()); ++i) {
    const GpuDevice& g = t.gpus[size_t(i)];
    const PciBridge* slot = bridge_at(t, g.host, g.parent);
    bool fake = slot && is_bogus(*slot, g);
    if (fake) bogus.push_back(i);
    const bool told_of = t.source == TopologySource::live || t.source == TopologySource::nccl_xml;
    if (told_of && g.pcie_max.width == 0) unreadable.push_back(i);
    judge_width(t, i, fake ? nullptr : slot, out);
    judge_generation(t, i, fake ? nullptr : slot, unjudged, out);
    judge_copy(t, i, out);
  }
  if (!bogus.empty()) {
    const PcieLink& card = t.gpus[size_t(bogus[0])].pcie_max;
    out.push_back({"PCIE_BOGUS_BRIDGE", Severity::warning, gpu_names(t, bogus),
                   "the hypervisor's bridges above " + gpu_list(t, bogus) + " claim one lane of PCIe Gen1",
                   "the bridge says 2.5 GT/s x1, the card " + (card.width > 0 ? link_name(card) : "width 0"),
                   "NCCL believes them (0.2 GB/s), keeps GPUs and NICs apart and crawls from two nodes on",
                   "give NCCL a corrected topology: NCCL_TOPO_FILE=/path/topo.xml, or ask the provider for one"});
  }
  if (!unreadable.empty())
    out.push_back(
        {"PCIE_NOT_TOLD", Severity::info, gpu_names(t, unreadable),
         "the PCIe link of " + gpu_list(t, unreadable) + " is not told: figures here are a hypervisor's",
         "link width 0",
         "a link that is trained too narrow would not be noticed; NCCL takes width 0 for 16 lanes, an unknown "
         "speed for Gen3, and may rank paths wrongly",
         "xylem topo --measure copies and compares; NCCL_TOPO_FILE with the links as they are corrects NCCL"});
  if (!unjudged.empty())
    out.push_back({"PCIE_NOT_JUDGED", Severity::info, gpu_names(t, unjudged),
                   "the PCIe speed of " + gpu_list(t, unjudged) + " is not judged: the GPUs idle and save power",
                   "now " + link_name(t.gpus[size_t(unjudged[0])].pcie) + " of " +
                       link_name(t.gpus[size_t(unjudged[0])].pcie_max),
                   "", "xylem topo --measure reads it while a copy runs"});
}

void find_peer_problems(const Topology& t, Findings& out) {
  std::set<std::pair<int, int>> corrupt;
  std::vector<std::string> unsupported, disabled;
  for (int i = 0; i < int(t.gpus.size()); ++i)
    for (int j = 0; j < int(t.gpus.size()); ++j) {
      const DevicePair& p = t.pair(i, j);
      if (i == j) continue;
      std::string pair = t.device_name(std::min(i, j)) + "-" + t.device_name(std::max(i, j));
      if (p.copies_right == false && corrupt.insert({std::min(i, j), std::max(i, j)}).second)
        out.push_back(
            {"P2P_CORRUPT",
             Severity::error,
             {pair},
             "copies between " + pair + " arrive damaged",
             "a pattern written by one GPU was read back wrong on the other",
             "training diverges, or collectives hang waiting for flags that never arrive",
             "set NCCL_P2P_DISABLE=1 now; then turn off the IOMMU or pass it through (iommu=pt), turn off ACS "
             "on the bridges, or use a driver that does not claim peer access for these cards"});
      bool off = p.peer != PeerAccess::ok && p.peer != PeerAccess::unknown;
      if (off && p.nvlinks > 0 && i < j)
        out.push_back({"P2P_DISABLED",
                       Severity::error,
                       {pair},
                       pair + " are joined by NVLink but peer access is off",
                       p.str() + ", and the driver answers that peer access is not possible",
                       "NCCL stops with \"P2P is disabled between NVLINK connected GPUs\"",
                       "in a virtual machine or container make all GPUs of the NVLink domain visible; remove "
                       "NVreg_RegistryDwords that disable peer access; restart nvidia-fabricmanager"});
      if (off && p.nvlinks == 0 && i < j) (p.peer == PeerAccess::disabled ? disabled : unsupported).push_back(pair);
      if (p.measured_gbps && p.gbps && *p.measured_gbps < 0.5 * *p.gbps && i < j)
        out.push_back({"P2P_SLOW",
                       Severity::warning,
                       {pair},
                       "copies between " + pair + " reach " + number(*p.measured_gbps) + " GB/s",
                       p.str() + " should give about " + number(*p.gbps) + " GB/s",
                       "every ring through this pair is that slow",
                       "nvidia-smi nvlink -s and -e; on PCIe look at ACS, IOMMU and the width of the links"});
    }
  if (!unsupported.empty())
    out.push_back(
        {"P2P_UNSUPPORTED", Severity::info, unsupported, "the driver offers no peer access between these GPUs",
         "the answer for reading is \"not supported\" (usual for GeForce)",
         "NCCL copies through the host's memory (SHM): about half the speed of PCIe, and /dev/shm must be large", ""});
  if (!disabled.empty())
    out.push_back({"P2P_OFF_IN_DRIVER", Severity::warning, disabled, "peer access is turned off in the driver",
                   "the answer for reading is \"disabled by registry\"",
                   "NCCL copies through the host's memory instead",
                   "remove the setting from /etc/modprobe.d (NVreg_RegistryDwords) and load the driver again"});
}

void find_tree_problems(const Topology& t, Findings& out) {
  for (int host = 0; host < int(t.hosts.size()); ++host) {
    std::vector<int> gpus, nics, no_numa;
    for (int i = 0; i < int(t.gpus.size()); ++i)
      if (t.gpus[size_t(i)].host == host) {
        gpus.push_back(i);
        if (!t.gpus[size_t(i)].numa) no_numa.push_back(i);
      }
    for (int i = int(t.gpus.size()); i < t.devices(); ++i)
      if (t.host_of(i) == host && !gpus.empty() && t.pair(gpus[0], i).path != PathClass::unknown) nics.push_back(i);
    if (gpus.empty()) continue;
    // All alike, though there are too many devices for one host bridge: a hypervisor hides the tree.
    std::set<PathClass> pci_paths, nic_paths;
    for (int a : gpus) {
      for (int b : gpus)
        if (a != b && t.pair(a, b).nvlinks == 0) pci_paths.insert(t.pair(a, b).path);
      for (int n : nics) nic_paths.insert(t.pair(a, n).path);
    }
    bool flat_gpus = gpus.size() >= 4 && pci_paths == std::set{PathClass::phb};
    bool flat_nics = gpus.size() >= 2 && nics.size() >= 2 && nic_paths == std::set{PathClass::phb};
    bool flat = no_numa.size() == gpus.size() && (flat_gpus || flat_nics);
    bool nvlinked = std::any_of(gpus.begin(), gpus.end(), [&](int a) {
      return std::any_of(gpus.begin(), gpus.end(), [&](int b) { return a != b && t.pair(a, b).nvlinks > 0; });
    });
    if (flat)
      out.push_back(
          {"VM_TREE_FLAT", Severity::warning, gpu_names(t, gpus),
           "the PCIe tree is flat: it tells nothing about which devices are near each other",
           std::to_string(gpus.size()) + " GPUs and " + std::to_string(nics.size()) +
               " NICs below one host bridge, NUMA nodes unknown",
           flat_nics ? "NCCL pairs GPUs with the wrong NICs: on a reported machine 475 became 27 GB/s over "
                       "several nodes"
                     : "NCCL cannot tell near GPUs from far ones; rings may cross sockets at every step",
           "give NCCL the provider's topology file (NCCL_TOPO_FILE), or have the hypervisor expose the tree"});
    else if (!no_numa.empty() && gpus.size() > 1 && t.source != TopologySource::topo_m)
      out.push_back({"NUMA_UNKNOWN", Severity::info, gpu_names(t, no_numa),
                     "the NUMA node of " + gpu_list(t, no_numa) + " is not known", "numa_node is -1",
                     "processes cannot be bound near their GPU", "bind by hand if the machine has several sockets"});
    std::set<std::optional<int>> nodes;
    for (int g : gpus) nodes.insert(t.gpus[size_t(g)].numa);
    bool all_sys = pci_paths == std::set{PathClass::sys} && !nvlinked && gpus.size() >= 2;
    if (all_sys && (nodes.size() < gpus.size()) && !nodes.count(std::nullopt))
      out.push_back({"PATHS_UNIFORM", Severity::info, gpu_names(t, gpus),
                     "every pair of GPUs is SYS, also where both are on one NUMA node",
                     std::to_string(gpus.size()) + " GPUs on " + std::to_string(nodes.size()) + " NUMA nodes",
                     "the classes do not tell sockets apart (each node has several root complexes)",
                     "order ranks by NUMA node, as the placement of xylem topo does"});
    // NIC i is usually near GPU i; where the order is another, mapping by number is wrong.
    bool rails = nics.size() >= gpus.size() && gpus.size() >= 2, reversed = rails;
    int last = t.devices();
    for (int g : gpus) {
      int near = -1;
      for (int n : nics)
        if (t.pair(g, n).path == PathClass::pix) near = near < 0 ? n : -2;
      if (near < 0 || near >= last) reversed = false;
      last = near;
    }
    if (reversed)
      out.push_back({"NIC_ORDER",
                     Severity::info,
                     {},
                     "NICs and GPUs are numbered in opposite order",
                     t.device_name(gpus.front()) + " is nearest to the highest NIC, " + t.device_name(gpus.back()) +
                         " to the lowest",
                     "choosing a NIC by the number of the rank gives every GPU a far one",
                     "choose by distance, as NCCL and xylem topo do"});
  }
}

}  // namespace xylem::detail
