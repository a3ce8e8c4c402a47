// SPDX-License-Identifier: Apache-2.0
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "distributed/topology/cpulist.h"
#include "distributed/topology/detect.h"
#include "distributed/topology/gpu_model.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;

// Not by a stream, which throws where the kernel answers with an error (the speed of an interface that is down).
std::string read_bytes(const fs::path& path) {
  std::string bytes;
  if (FILE* file = std::fopen(path.c_str(), "rb")) {
    char block[4096];
    for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;) bytes.append(block, n);
    std::fclose(file);
  }
  return bytes;
}

std::string read_text(const fs::path& path) {
  std::string text = read_bytes(path);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

bool present(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::optional<int> read_int(const fs::path& path) {
  std::string text = read_text(path);
  char* end = nullptr;
  long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || end == text.c_str()) return std::nullopt;
  return int(value);
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    paths.push_back(at->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0" -> the addresses on the way and what is above them.
struct PciPath {
  std::string root;
  std::vector<PciAddress> addresses;  // from the root down
};
PciPath pci_path(const fs::path& link) {
  PciPath result;
  std::error_code error;
  fs::path real = fs::canonical(link, error);
  if (error) return result;
  for (const fs::path& part : real) {
    std::string name = part.string();
    if (auto address = PciAddress::parse(name); address && name.size() >= 12)
      result.addresses.push_back(*address);
    else if (name.starts_with("pci"))
      result.root = name;
  }
  return result;
}

PcieLink link_at(const fs::path& device, const char* which) {
  int width = read_int(device / (std::string(which) + "_link_width")).value_or(0);
  return {generation_of_speed(read_text(device / (std::string(which) + "_link_speed"))), width > 32 ? 0 : width};
}

std::optional<int> numa_at(const fs::path& device) {
  auto node = read_int(device / "numa_node");
  return node && *node >= 0 ? node : std::nullopt;
}

class Scanner {
 public:
  explicit Scanner(const std::string& root) : root_(root), sys_(root + "/sys"), devices_(sys_ / "bus/pci/devices") {}

  SysfsMachine scan() {
    host();
    numa();
    gpus();
    nics();
    std::vector<PciPlace> places = m_.gpu_places;
    places.insert(places.end(), m_.nic_places.begin(), m_.nic_places.end());
    derive_pci_pairs(m_.topology, places, 2);
    environment();
    return std::move(m_);
  }

 private:
  void host() {
    HostInfo h;
    utsname name{};
    if (uname(&name) == 0) {
      h.name = name.nodename;
      h.arch = name.machine;
    }
    std::ifstream info(root_ + "/proc/cpuinfo");
    for (std::string line; std::getline(info, line) && !line.empty();) {
      size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
      std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
      if (key == "vendor_id") h.cpu_vendor = value;
      if (key == "CPU implementer" && h.cpu_vendor.empty()) h.cpu_vendor = value == "0x4e" ? "NVIDIA" : "ARM";
      if (key == "model name") h.cpu_model = value;
      if (key == "cpu family") h.cpu_family = std::atoi(value.c_str());
      if (key == "model") h.cpu_model_number = std::atoi(value.c_str());
      if (key == "flags" && (" " + value + " ").find(" hypervisor ") != std::string::npos) h.virtual_machine = true;
    }
    std::string groups = read_text(root_ + "/proc/1/cgroup");
    for (const char* sign : {"docker", "kubepods", "containerd", "lxc"})
      h.container |= groups.find(sign) != std::string::npos;
    h.container |= present(root_ + "/.dockerenv") || present(root_ + "/run/.containerenv");
    m_.topology.hosts.push_back(h);
    m_.topology.source = TopologySource::live;
    m_.topology.origin = "this machine";
  }

  void numa() {
    for (const fs::path& node : entries(sys_ / "devices/system/node")) {
      std::string name = node.filename().string();
      if (!name.starts_with("node") || name.size() == 4 || !std::isdigit(uint8_t(name[4]))) continue;
      NumaNode n;
      n.id = std::atoi(name.c_str() + 4);
      n.cpus = read_text(node / "cpulist");
      if (n.cpus.empty() || !parse_cpulist(n.cpus)) continue;  // a GPU's memory, on Grace
      std::ifstream distances(node / "distance");
      for (int d; distances >> d;) n.distance.push_back(d);
      m_.topology.numa.push_back(n);
    }
    auto& list = m_.topology.numa;
    std::sort(list.begin(), list.end(), [](auto& a, auto& b) { return a.id < b.id; });
  }

  // Registers the bridges above a device.
  PciPlace place_of(const fs::path& link) {
    PciPath path = pci_path(link);
    PciPlace place;
    if (path.addresses.empty()) return place;
    place.root = path.root.empty() ? "pci" : path.root;
    std::optional<double> narrowest;
    for (size_t i = 0; i < path.addresses.size(); ++i) {
      PcieLink most = link_at(devices_ / path.addresses[i].str(), "max");
      if (double gbps = most.gbps(); gbps > 0) narrowest = std::min(narrowest.value_or(gbps), gbps);
      if (i + 1 == path.addresses.size()) break;
      place.bridges.insert(place.bridges.begin(), path.addresses[i]);
      add_bridge(path.addresses[i], i > 0 ? std::optional(path.addresses[i - 1]) : std::nullopt);
    }
    place.gbps = narrowest;
    return place;
  }

  void add_bridge(const PciAddress& pci, std::optional<PciAddress> parent) {
    auto& bridges = m_.topology.bridges;
    if (std::any_of(bridges.begin(), bridges.end(), [&](auto& b) { return b.pci == pci; })) return;
    fs::path device = devices_ / pci.str();
    PciBridge b;
    b.pci = pci;
    b.parent = parent;
    b.link = link_at(device, "current");
    b.link_max = link_at(device, "max");
    b.vendor = read_text(device / "vendor");
    b.device = read_text(device / "device");
    bridges.push_back(b);
  }

  void gpus() {
    for (const fs::path& device : entries(devices_)) {
      if (read_text(device / "vendor") != "0x10de" || !read_text(device / "class").starts_with("0x03")) continue;
      GpuDevice g;
      g.index = int(m_.topology.gpus.size());
      g.pci = PciAddress::parse(device.filename().string());
      if (!g.pci) continue;
      g.name = gpu_name_of_pci_id(read_text(device / "device"));
      complete_from_name(g);
      g.numa = numa_at(device);
      std::string cpus = read_text(device / "local_cpulist");
      if (parse_cpulist(cpus)) g.cpus = cpus;
      g.pcie = link_at(device, "current");
      g.pcie_max = link_at(device, "max");
      PciPlace place = place_of(device);
      if (!place.bridges.empty()) g.parent = place.bridges[0];
      m_.topology.gpus.push_back(g);
      m_.gpu_places.push_back(place);
    }
    m_.environment.nvidia_on_pci = int(m_.topology.gpus.size());
  }

  void add_nic(NicDevice nic, const fs::path& link) {
    PciPath path = pci_path(link);
    if (path.addresses.empty()) return;  // loopback, bridges, tunnels
    nic.pci = path.addresses.back();
    for (const NicDevice& n : m_.topology.nics)
      if (n.pci == nic.pci) return;  // the network interface of an InfiniBand device
    nic.index = int(m_.topology.nics.size());
    nic.numa = numa_at(devices_ / nic.pci->str());
    PciPlace place = place_of(devices_ / nic.pci->str());
    if (!place.bridges.empty()) nic.parent = place.bridges[0];
    m_.topology.nics.push_back(nic);
    m_.nic_places.push_back(place);
  }

  void nics() {
    bool peer_memory = present(sys_ / "module/nvidia_peermem") || present(sys_ / "module/nv_peer_mem");
    for (const fs::path& device : entries(sys_ / "class/infiniband")) {
      NicDevice nic;
      nic.name = device.filename().string();
      nic.up = false;
      for (const fs::path& port : entries(device / "ports")) {
        nic.up |= read_text(port / "state").find("ACTIVE") != std::string::npos;
        nic.infiniband |= read_text(port / "link_layer") == "InfiniBand";
        double gbits = std::strtod(read_text(port / "rate").c_str(), nullptr);
        if (gbits > 0) nic.gbps = std::max(nic.gbps.value_or(0), gbits / 8);
      }
      nic.gpudirect = peer_memory;
      add_nic(nic, device / "device");
    }
    for (const fs::path& device : entries(sys_ / "class/net")) {
      NicDevice nic;
      nic.name = device.filename().string();
      nic.up = read_text(device / "operstate") == "up";
      if (auto mbits = read_int(device / "speed"); mbits && *mbits > 0) nic.gbps = *mbits / 8000.0;
      NetInterface interface { .name = nic.name, .up = nic.up || nic.name == "lo", .has_address = true };
      m_.environment.interfaces.push_back(interface);
      add_nic(nic, device / "device");
    }
  }

  // ACS control: bits 2 and 3 redirect requests and completions of peers. Beyond 256 bytes only root may read.
  std::optional<bool> acs_redirect(const PciAddress& bridge) const {
    std::string config = read_bytes(devices_ / bridge.str() / "config");
    if (config.size() <= 256) return std::nullopt;
    auto word = [&](size_t at) {
      return at + 1 < config.size() ? uint8_t(config[at]) | uint8_t(config[at + 1]) << 8 : 0;
    };
    size_t at = 0x100;
    for (int hops = 0; at >= 0x100 && at + 8 <= config.size() && hops < 64; ++hops) {
      if (word(at) == 0x000d) return (word(at + 6) & 0xc) != 0;
      at = size_t(word(at + 2)) >> 4;
    }
    return false;
  }

  void environment() {
    Environment& e = m_.environment;
    std::vector<PciAddress> redirects;
    bool readable = false;
    for (const PciBridge& b : m_.topology.bridges)
      if (auto on = acs_redirect(b.pci)) {
        readable = true;
        if (*on) redirects.push_back(b.pci);
      }
    if (readable) e.acs_redirects = redirects;
    for (const GpuDevice& g : m_.topology.gpus) {
      std::string type = read_text(devices_ / g.pci->str() / "iommu_group/type");
      if (!type.empty()) e.iommu_translates = e.iommu_translates.value_or(false) || type.starts_with("DMA");
    }
    if (!e.iommu_translates && entries(sys_ / "class/iommu").empty()) e.iommu_translates = false;
    e.online_cpus = read_text(sys_ / "devices/system/cpu/online");
  }

  std::string root_;
  fs::path sys_, devices_;
  SysfsMachine m_;
};

}  // namespace

SysfsMachine read_sysfs(const std::string& root) { return Scanner(root).scan(); }

}  // namespace xylem
