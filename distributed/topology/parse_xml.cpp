// SPDX-License-Identifier: Apache-2.0
// NCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.
//
// <system> holds a <cpu> for each NUMA node, those nested <pci> elements (bridges, GPUs, NICs), GPUs a <gpu> with its
// <nvlink> ends. Files written by hand may lack <gpu> and <nic>, and even the class of devices, which NCCL looks up on
// the machine. A switch is one bridge here. Speeds are the greatest that device and slot can do, not the trained ones.
#include "core/util/check.h"
#include "distributed/topology/topology.h"

#ifdef XY_WITH_XML
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <pugixml.hpp>
#include <tuple>

#include "distributed/topology/cpulist.h"
#include "distributed/topology/derive.h"
#include "distributed/topology/gpu_model.h"
#endif

namespace xylem {

#ifdef XY_WITH_XML
namespace {

// "000000ff,ffff0000": 32 bits a word, the most significant first.
std::optional<std::string> cpus_of_mask(std::string_view mask) {
  std::vector<uint32_t> words;
  while (!mask.empty()) {
    uint32_t word = 0;
    auto [end, error] = std::from_chars(mask.data(), mask.data() + mask.size(), word, 16);
    if (error != std::errc()) return std::nullopt;
    mask.remove_prefix(size_t(end - mask.data()));
    words.push_back(word);
    if (words.size() > 512) return std::nullopt;
    if (mask.empty()) break;
    if (mask[0] != ',') return std::nullopt;
    mask.remove_prefix(1);
  }
  std::vector<int> cpus;
  for (size_t w = 0; w < words.size(); ++w)
    for (int bit = 0; bit < 32; ++bit)
      if (words[words.size() - 1 - w] >> bit & 1) cpus.push_back(int(w) * 32 + bit);
  return format_cpulist(cpus);
}

struct XmlReader {
  XmlReader(const std::string& xml, const std::string& where, const Topology* detected)
      : text(xml), origin(where), here(detected) {}

  const std::string& text;
  const std::string& origin;
  const Topology* here;  // null: the file describes another machine
  Topology t;
  std::vector<PciPlace> gpu_places, nic_places;
  struct Ends {
    std::vector<NvlinkEnd> nvlinks;
    std::optional<double> c2c_gbps;
    int c2c = 0;
  };
  std::vector<Ends> ends;  // of each GPU
  std::vector<std::string> hashes;
  bool all_numbered = true;

  [[noreturn]] void fail(long offset, const std::string& what) const {
    auto at = text.begin() + std::clamp<long>(offset, 0, long(text.size()));
    XY_FAIL(origin, ", line ", 1 + std::count(text.begin(), at, '\n'), ": ", what);
  }

  PciAddress address(const pugi::xml_node& node) const {
    std::string id = node.attribute("busid").value();
    auto address = PciAddress::parse(id);
    if (!address) fail(node.offset_debug(), "busid is '" + id + "': expected a PCI address such as 0000:3b:00.0");
    return *address;
  }

  static PcieLink link_of(const pugi::xml_node& node) {
    return {generation_of_speed(node.attribute("link_speed").value()),
            std::clamp(node.attribute("link_width").as_int(), 0, 32)};
  }

  void read_gpu(const pugi::xml_node& node, const PciPlace& place, int host, std::optional<int> numa,
                const std::string& cpus) {
    GpuDevice g;
    g.index = int(t.gpus.size());
    g.host = host;
    g.pci = address(node);
    if (!place.bridges.empty()) g.parent = place.bridges[0];
    g.numa = numa;
    g.cpus = cpus;
    g.pcie_max = link_of(node);
    g.name = gpu_name_of_pci_id(node.attribute("device").value());
    if (const GpuDevice* seen = gpu_here(*g.pci)) {
      if (g.name.empty()) g.name = seen->name;
      g.uuid = seen->uuid;
      g.sm = seen->sm;
      g.memory = seen->memory;
      g.pcie = seen->pcie;
      if (g.pcie_max.width == 0) g.pcie_max = seen->pcie_max;
    }
    complete_from_name(g);
    Ends mine;
    pugi::xml_node gpu = node.child("gpu");
    all_numbered &= bool(gpu.attribute("dev"));
    if (gpu) {
      g.index = gpu.attribute("dev").as_int();
      if (gpu.attribute("sm")) g.sm = gpu.attribute("sm").as_int();
      for (const pugi::xml_node& link : gpu.children("nvlink")) {
        int count = link.attribute("count").as_int();
        if (count < 1 || count > 72)
          fail(link.offset_debug(), "an nvlink has count '" + std::string(link.attribute("count").value()) +
                                        "': expected a number of links");
        std::string target = link.attribute("target").value(), kind = link.attribute("tclass").value();
        // NCCL writes fffffff:ff:ff.0 for a switch that it cannot see.
        bool hidden = target.starts_with("fffffff:");
        auto address = hidden ? std::nullopt : PciAddress::parse(target);
        if (!hidden && !address)
          fail(link.offset_debug(), "an nvlink leads to '" + target + "': expected a PCI address");
        mine.nvlinks.push_back({.target = address, .to_switch = hidden || kind == "0x068000", .count = count});
        g.nvlinks_active = g.nvlinks_active.value_or(0) + count;
      }
      if (pugi::xml_node c2c = gpu.child("c2c")) {
        mine.c2c = c2c.attribute("count").as_int();
        mine.c2c = std::clamp(mine.c2c, 0, 72);
        double each = c2c.attribute("bw").as_double();
        if (each > 0 && each < 1e9) mine.c2c_gbps = each * mine.c2c / 1000;
      }
    }
    t.gpus.push_back(g);
    gpu_places.push_back(place);
    ends.push_back(mine);
  }

  const GpuDevice* gpu_here(const PciAddress& pci) const {
    if (here)
      for (const GpuDevice& g : here->gpus)
        if (g.pci == pci) return &g;
    return nullptr;
  }
  const NicDevice* nic_here(const PciAddress& pci) const {
    if (here)
      for (const NicDevice& n : here->nics)
        if (n.pci == pci) return &n;
    return nullptr;
  }

  void read_nets(const pugi::xml_node& node, const pugi::xml_node& pci, const PciPlace& place, int host,
                 std::optional<int> numa) {
    auto add = [&](NicDevice nic) {
      nic.index = int(t.nics.size());
      nic.host = host;
      nic.numa = numa;
      if (pci) {
        nic.pci = address(pci);
        nic.infiniband = std::string_view(pci.attribute("class").value()).starts_with("0x0207");
        if (!place.bridges.empty()) nic.parent = place.bridges[0];
      }
      t.nics.push_back(nic);
      nic_places.push_back(place);
    };
    bool any = false;
    for (const pugi::xml_node& nic : node.children("nic"))
      for (const pugi::xml_node& net : nic.children("net")) {
        any = true;
        NicDevice device;
        device.name = net.attribute("name").value();
        if (device.name == "lo") continue;
        auto same = [&](const NicDevice& o) { return o.host == host && o.name == device.name; };
        // Every rank adds its sockets below its own CPU.
        if (!pci && std::any_of(t.nics.begin(), t.nics.end(), same)) continue;
        if (double mbits = net.attribute("speed").as_double(); mbits > 0 && mbits < 1e9) device.gbps = mbits / 8000;
        device.gpudirect = net.attribute("gdr").as_int() == 1;
        add(device);
      }
    if (any || !pci) return;
    const NicDevice* seen = nic_here(address(pci));
    add(seen ? *seen : NicDevice{});
  }

  enum class Kind { gpu, nic, bridge, unknown };
  Kind kind_of(const pugi::xml_node& node) const {
    const std::string_view kind = node.attribute("class").value();
    if (kind.starts_with("0x03") || node.child("gpu")) return Kind::gpu;
    if (kind.starts_with("0x02") || node.child("nic")) return Kind::nic;
    if (kind.starts_with("0x06") || node.child("pci")) return Kind::bridge;
    if (gpu_here(address(node)) || !gpu_name_of_pci_id(node.attribute("device").value()).empty()) return Kind::gpu;
    return nic_here(address(node)) ? Kind::nic : Kind::unknown;
  }

  void read_pci(const pugi::xml_node& node, PciPlace place, int host, std::optional<int> numa, const std::string& cpus,
                int depth = 0) {
    if (depth > 32) fail(node.offset_debug(), "more than 32 bridges above a device");
    const Kind kind = kind_of(node);
    PcieLink link = link_of(node);
    double gbps = link.gbps();
    auto narrow = [&](bool first) -> std::optional<double> {
      if (gbps <= 0 || (!first && !place.gbps)) return std::nullopt;
      return first ? gbps : std::min(gbps, *place.gbps);
    };
    place.gbps = narrow(place.bridges.empty());
    if (kind == Kind::gpu) {
      read_gpu(node, place, host, numa, cpus);
    } else if (kind == Kind::nic) {
      read_nets(node, node, place, host, numa);
    } else if (kind == Kind::unknown) {
      // NVSwitches and other controllers have a class, and no place among the devices.
      if (!node.attribute("class"))
        t.unknown.push_back({.pci = address(node),
                             .host = host,
                             .numa = numa,
                             .parent = place.bridges.empty() ? std::nullopt : std::optional(place.bridges[0])});
    } else {
      PciBridge bridge;
      bridge.pci = address(node);
      bridge.host = host;
      bridge.link_max = link;
      bridge.vendor = node.attribute("vendor").value();
      bridge.device = node.attribute("device").value();
      if (!place.bridges.empty()) bridge.parent = place.bridges[0];
      t.bridges.push_back(bridge);
      // The virtual switch of QEMU.
      if (bridge.vendor == "0x104c" && bridge.device == "0x8232") t.hosts[size_t(host)].virtual_machine = true;
      place.bridges.insert(place.bridges.begin(), bridge.pci);
    }
    for (const pugi::xml_node& child : node.children("pci")) read_pci(child, place, host, numa, cpus, depth + 1);
  }

  void read_cpu(const pugi::xml_node& cpu) {
    std::string hash = cpu.attribute("host_hash").value();
    auto at = std::find(hashes.begin(), hashes.end(), hash);
    int host = int(at - hashes.begin());
    if (at == hashes.end()) {
      hashes.push_back(hash);
      t.hosts.emplace_back();
    }
    if (hashes.size() > 4096) fail(cpu.offset_debug(), "more than 4096 hosts");
    HostInfo& info = t.hosts[size_t(host)];
    info.arch = cpu.attribute("arch").value();
    info.cpu_vendor = cpu.attribute("vendor").value();
    if (cpu.attribute("familyid")) info.cpu_family = cpu.attribute("familyid").as_int();
    if (cpu.attribute("modelid")) info.cpu_model_number = cpu.attribute("modelid").as_int();
    std::optional<int> numa;
    if (int id = cpu.attribute("numaid").as_int(-1); id >= 0) numa = id;
    std::string mask = cpu.attribute("affinity").value();
    auto cpus = cpus_of_mask(mask);
    if (!cpus)
      fail(cpu.offset_debug(), "the affinity is '" + mask + "': expected hexadecimal words such as 000000ff,ffff0000");
    auto same = [&](const NumaNode& n) { return n.host == host && n.id == *numa; };
    if (numa && std::none_of(t.numa.begin(), t.numa.end(), same))
      t.numa.push_back({.id = *numa, .host = host, .cpus = *cpus, .distance = {}});
    PciPlace place;
    place.root = "cpu" + std::to_string(host) + "." + std::to_string(numa.value_or(-1));
    for (const pugi::xml_node& pci : cpu.children("pci")) read_pci(pci, place, host, numa, *cpus);
    PciPlace nowhere;  // a socket's distance to anything is not told
    read_nets(cpu, {}, nowhere, host, numa);
  }

  // GPUs by host, then by number, or, where files give none, as CUDA numbers them: by address. NICs alike.
  void sort() {
    std::vector<size_t> order(t.gpus.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    auto key = [&](size_t i) {
      const GpuDevice& g = t.gpus[i];
      return std::tuple(g.host, all_numbered ? g.index : 0, *g.pci);
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    auto gpus = t.gpus;
    auto places = gpu_places;
    auto links = ends;
    for (size_t i = 0; i < order.size(); ++i) {
      t.gpus[i] = gpus[order[i]];
      gpu_places[i] = places[order[i]];
      ends[i] = links[order[i]];
      if (!all_numbered)
        t.gpus[i].index = int(i > 0 && t.gpus[i - 1].host == t.gpus[i].host ? t.gpus[i - 1].index + 1 : 0);
    }
    order.resize(t.nics.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    auto nic_key = [&](size_t i) {
      const NicDevice& n = t.nics[i];
      return std::tuple(n.host, !n.pci, n.pci.value_or(PciAddress{}), n.name);
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return nic_key(a) < nic_key(b); });
    auto nics = t.nics;
    places = nic_places;
    for (size_t i = 0; i < order.size(); ++i) {
      t.nics[i] = nics[order[i]];
      nic_places[i] = places[order[i]];
      t.nics[i].index = int(i > 0 && t.nics[i - 1].host == t.nics[i].host ? t.nics[i - 1].index + 1 : 0);
    }
    std::sort(t.numa.begin(), t.numa.end(),
              [](auto& a, auto& b) { return std::tie(a.host, a.id) < std::tie(b.host, b.id); });
  }

  void derive() {
    std::vector<PciPlace> places = gpu_places;
    places.insert(places.end(), nic_places.begin(), nic_places.end());
    derive_pci_pairs(t, places, 1);
    std::vector<NvlinkEnd> all;
    for (size_t i = 0; i < ends.size(); ++i) {
      for (NvlinkEnd end : ends[i].nvlinks) {
        end.gpu = int(i);
        all.push_back(end);
      }
      if (ends[i].c2c > 0 && t.gpus[i].numa)
        t.links.push_back({.a = t.device_name(int(i)),
                           .b = (t.hosts.size() > 1 ? t.host_name(t.gpus[i].host) + ":" : "") + "NUMA" +
                                std::to_string(*t.gpus[i].numa),
                           .kind = LinkKind::c2c,
                           .count = ends[i].c2c,
                           .gbps = ends[i].c2c_gbps});
    }
    // NCCL joins hosts in one file only where NVLink does.
    add_nvlinks(t, all, t.hosts.size() > 1);
    if (here && all.empty()) take_nvlinks();
  }

  // A file that leaves NVLink to the driver gets what the driver of this machine says.
  void take_nvlinks() {
    std::vector<int> seen(t.gpus.size(), -1);  // where `here` has each GPU
    for (size_t i = 0; i < t.gpus.size(); ++i)
      if (const GpuDevice* g = gpu_here(*t.gpus[i].pci)) {
        seen[i] = int(g - here->gpus.data());
        t.gpus[i].nvlinks_active = g->nvlinks_active;
        t.gpus[i].nvlinks_existing = g->nvlinks_existing;
        t.gpus[i].nvlink_gbps = g->nvlink_gbps;
        t.gpus[i].fabric = g->fabric;
      }
    for (size_t i = 0; i < seen.size(); ++i)
      for (size_t j = 0; j < seen.size(); ++j)
        if (i != j && seen[i] >= 0 && seen[j] >= 0 && here->pair(seen[i], seen[j]).nvlinks > 0)
          t.pairs[i][j] = here->pair(seen[i], seen[j]);
    t.switches = here->switches;
    auto end = [&](const std::string& name) {  // of a link: its GPU may have another number here
      for (size_t i = 0; i < seen.size(); ++i)
        if (seen[i] >= 0 && here->device_name(seen[i]) == name) return t.device_name(int(i));
      return name;
    };
    for (FabricLink link : here->links)
      if (link.kind == LinkKind::nvlink) {
        link.a = end(link.a);
        link.b = end(link.b);
        t.links.push_back(link);
      }
  }
};

}  // namespace

Topology parse_nccl_xml(const std::string& text, const std::string& origin, const Topology* here) {
  pugi::xml_document document;
  pugi::xml_parse_result result = document.load_buffer(text.data(), text.size());
  XmlReader r(text, origin, here);
  if (!result) r.fail(result.offset, std::string("no XML: ") + result.description());
  pugi::xml_node system = document.child("system");
  if (!system && document.child("graphs"))
    r.fail(0, "this is a graph dump of NCCL (NCCL_GRAPH_DUMP_FILE): expected its topology (NCCL_TOPO_DUMP_FILE)");
  if (!system) r.fail(0, "no <system> element: expected a topology of NCCL (NCCL_TOPO_DUMP_FILE)");
  for (const pugi::xml_node& cpu : system.children("cpu")) r.read_cpu(cpu);
  if (r.t.gpus.empty() && r.t.unknown.empty())
    r.fail(system.offset_debug(), "no GPU below <system>: expected <pci class=\"0x030200\" ...>");
  if (r.t.devices() + int(r.t.unknown.size()) > 4096) r.fail(0, "more than 4096 devices");
  r.sort();
  r.derive();
  r.t.source = TopologySource::nccl_xml;
  r.t.origin = origin;
  return r.t;
}

#else

Topology parse_nccl_xml(const std::string&, const std::string& origin, const Topology*) {
  XY_FAIL(origin, ": this build reads no NCCL XML: install libpugixml-dev and configure again");
}

#endif

}  // namespace xylem
