// SPDX-License-Identifier: Apache-2.0
// Topology: the machines of a job as a graph of GPUs, NICs, NUMA nodes, PCIe bridges and NVSwitches. It is filled by
// live detection, by NCCL's topology XML, by the text of `nvidia-smi topo -m`, or by our own JSON. What a source does
// not tell stays unknown (an empty optional, PathClass::unknown); nothing is guessed.
//
// This folder: the model and its sources (detect with sysfs, nvml and hwloc; parse_xml, parse_topo_m, json), what is
// wrong with a machine (findings), what its links carry (measure), where ranks belong (placement), a picture (svg).
#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xylem {

struct PciAddress {
  uint32_t domain = 0;
  uint8_t bus = 0, device = 0, function = 0;
  auto operator<=>(const PciAddress&) const = default;
  std::string str() const;                                     // "0000:3b:00.0"
  static std::optional<PciAddress> parse(std::string_view s);  // also "00000000:3B:00.0" and without a domain
};

struct PcieLink {
  int generation = 0, width = 0;  // 0: unknown
  double gbps() const;            // GB/s of one direction as NCCL counts them: Gen4 x16 is 24
  bool operator==(const PcieLink&) const = default;
};

// How two devices reach each other, nearest first: the words of `nvidia-smi topo -m`, direct and switched NVLink told
// apart, and `net` between hosts.
enum class PathClass { self, nvlink, nvswitch, pix, pxb, phb, node, sys, net, unknown };
const char* name_of(PathClass c);  // "nvswitch"

struct NvFabric {  // of an NVSwitch system, from NVML
  int state = 0;   // 0: not supported, 1: not started, 2: in progress, 3: completed
  uint32_t clique = 0, health_mask = 0;
  std::string cluster_uuid;
};

struct GpuDevice {
  int index = 0;  // in the order of the host: "GPU0"
  int host = 0;
  std::string name, uuid;
  std::optional<PciAddress> pci;
  std::optional<PciAddress> parent;  // the PCIe bridge above it
  std::optional<int> sm;             // 90 is compute capability 9.0
  std::optional<int64_t> memory;     // bytes
  std::optional<int> numa;
  std::string cpus;                      // affinity as a cpulist, "0-55,112-167"; "" is unknown
  PcieLink pcie, pcie_max;               // trained and possible, of the card
  bool pcie_judged = false;              // `pcie` was read under load
  std::optional<double> host_copy_gbps;  // measured
  std::optional<int> nvlinks_active, nvlinks_existing;
  std::vector<int> nvlinks_down;      // which of the existing ones, where that is known
  std::optional<double> nvlink_gbps;  // of one link, one direction, as the driver states it (V100: 25.781)
  std::optional<NvFabric> fabric;
  std::optional<bool> mig, persistence, exclusive_compute, ecc_errors, multicast;
  std::optional<uint64_t> throttle_reasons;  // NVML's bits
  // Of all links together: transfers repeated and damaged since the driver was loaded, and of them while copies ran.
  std::optional<uint64_t> nvlink_errors, nvlink_errors_load, pcie_replays, pcie_replays_load;
};

struct NicDevice {
  int index = 0;  // "NIC0"
  int host = 0;
  std::string name;  // "mlx5_0"
  std::optional<PciAddress> pci;
  std::optional<PciAddress> parent;
  std::optional<int> numa;
  std::optional<double> gbps;  // GB/s of one direction
  bool up = true, infiniband = false, gpudirect = false;
  bool as_good_as(const NicDevice& other) const;  // in kind and speed, as far as both are known
};

struct NumaNode {
  int id = 0, host = 0;
  std::string cpus;           // cpulist, "" unknown
  std::vector<int> distance;  // to node 0, 1, ...
};

struct PciBridge {
  PciAddress pci;
  int host = 0;
  PcieLink link, link_max;
  std::string vendor, device;        // "0x104c", "0x8232"
  std::optional<PciAddress> parent;  // none: below the host bridge
};

struct NvSwitch {
  int index = 0, host = 0;
  std::optional<PciAddress> pci;
};

// A device that a source gives by its address alone: a GPU, a NIC, or neither.
struct UnknownDevice {
  PciAddress pci;
  int host = 0;
  std::optional<int> numa;
  std::optional<PciAddress> parent;
};

enum class LinkKind { nvlink, c2c, pcie, upi, network };

// Ends are named as in reports: "GPU0", "NIC1", "NVSwitch0", "NUMA0", "Network", with "host1:" before it where there
// are several hosts. A GPU outside of what the source shows is named by its PCI address.
struct FabricLink {
  std::string a, b;
  LinkKind kind = LinkKind::nvlink;
  int count = 1;
  std::optional<double> gbps;  // of all `count` together, one direction, as NCCL counts them
  bool up = true;
};

enum class PeerAccess { unknown, ok, not_supported, disabled, chipset, topology };

struct DevicePair {
  PathClass path = PathClass::unknown;
  int nvlinks = 0;             // between the two, or of each to the switches
  std::optional<double> gbps;  // one direction, as NCCL counts it: the narrowest part of the path
  PeerAccess peer = PeerAccess::unknown;
  std::optional<double> measured_gbps;
  std::optional<bool> copies_right;  // a pattern copied over it came out intact
  std::string str() const;           // "NV18", "PIX", "SYS", "X", "?"
};

struct HostInfo {
  std::string name, arch, cpu_vendor, cpu_model, driver, cuda, nccl;  // "x86_64", "GenuineIntel", ...
  std::optional<int> cpu_family, cpu_model_number;
  bool virtual_machine = false, container = false;
};

enum class Severity { info, warning, error };
const char* name_of(Severity s);

struct Finding {
  std::string code;  // "NVLINK_MISSING"
  Severity severity = Severity::warning;
  std::vector<std::string> subjects;  // "GPU2", "GPU0-GPU1", "NIC0"
  std::string what, evidence, impact, remedy;
};

enum class TopologySource { live, nccl_xml, topo_m, json };

struct Topology {
  std::vector<HostInfo> hosts;
  std::vector<GpuDevice> gpus;  // by host, then index
  std::vector<NicDevice> nics;
  std::vector<NumaNode> numa;
  std::vector<PciBridge> bridges;
  std::vector<NvSwitch> switches;
  std::vector<UnknownDevice> unknown;  // no part of devices()
  std::vector<FabricLink> links;
  // pairs[i][j], devices in the order GPU0.., NIC0..; the diagonal is self.
  std::vector<std::vector<DevicePair>> pairs;
  TopologySource source = TopologySource::json;
  std::string origin;  // file name or "this machine"

  int devices() const { return int(gpus.size() + nics.size()); }
  const DevicePair& pair(int a, int b) const { return pairs[size_t(a)][size_t(b)]; }
  int host_of(int device) const;
  std::string device_name(int device) const;  // "GPU0", "NIC1"; "host1:GPU0" where there are several hosts
  std::string host_name(int host) const;      // its name, or "host1"
  std::optional<int> nvlink_via(int a,
                                int b) const;  // a GPU with NVLink to both (NCCL's NVB), if they have none direct
  // The NICs (in `nics`) of the GPU's host that are up and reached over the best class of path; none where no distance
  // is known.
  std::vector<int> nearest_nics(int gpu) const;
  // Whether the link between sockets lies on the way: SYS, unless both are known to be on one NUMA node. Where `nic`
  // has none, it is on that of the GPUs nearer to it.
  bool nic_is_far(int gpu, int nic) const;
  const DevicePair& nic_pair(int gpu, int nic) const { return pair(gpu, int(gpus.size()) + nic); }
  // Sets of GPUs that reach each other over NVLink, directly or through others; a GPU without NVLink is alone.
  std::vector<std::vector<int>> islands() const;
  bool all_pairs_nvswitch() const;  // of the GPUs of each host, where it has several
  // Of everything that decides the plan; the same on every rank and for every source order. 16 hex digits.
  std::string fingerprint() const;
};

// Reads a topology; the kind is seen from the content. Throws Error naming the line and what was expected. Files that
// give devices by their address alone (made for NCCL_TOPO_FILE, which NCCL completes itself) are completed from `here`,
// what was detected on the machine that they describe; without it such devices are left in Topology::unknown.
Topology load_topology(const std::string& file, const Topology* here = nullptr);
Topology parse_topology(const std::string& text, const std::string& origin = "text", const Topology* here = nullptr);
Topology parse_nccl_xml(const std::string& text, const std::string& origin = "text", const Topology* here = nullptr);
Topology parse_topo_m(const std::string& text, const std::string& origin = "text");
Topology parse_topology_json(const std::string& text, const std::string& origin = "text");
std::string to_json(const Topology& topology);  // round trip

// This host's. Without a GPU or a driver it has the CPUs, NUMA nodes and NICs.
Topology detect_topology();
// `n` copies of a one-host topology joined by its NICs.
Topology replicate(const Topology& host, int n);

}  // namespace xylem
