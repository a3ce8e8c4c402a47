// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/topology.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <tuple>

#include "core/util/check.h"
#include "core/util/file.h"
#include "core/util/hash.h"

namespace xylem {

std::string PciAddress::str() const {
  char text[24];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return text;
}

std::optional<PciAddress> PciAddress::parse(std::string_view s) {
  auto take = [&](uint32_t most, char after) -> std::optional<uint32_t> {
    uint32_t value = 0;
    auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, 16);
    if (error != std::errc() || value > most) return std::nullopt;
    s.remove_prefix(size_t(end - s.data()));
    if (after) {
      if (!s.starts_with(after)) return std::nullopt;
      s.remove_prefix(1);
    }
    return value;
  };
  bool with_domain = std::count(s.begin(), s.end(), ':') == 2;
  std::optional<uint32_t> domain = with_domain ? take(UINT32_MAX, ':') : 0;
  std::optional<uint32_t> bus = domain ? take(0xff, ':') : std::nullopt;
  std::optional<uint32_t> device = bus ? take(0x1f, '.') : std::nullopt;
  std::optional<uint32_t> function = device ? take(7, 0) : std::nullopt;
  if (!function || !s.empty()) return std::nullopt;
  return PciAddress{*domain, uint8_t(*bus), uint8_t(*device), uint8_t(*function)};
}

double PcieLink::gbps() const {
  constexpr int kSpeed[] = {0, 15, 30, 60, 120, 240, 480};  // 100 Mb/s per lane, encoding and headers taken off
  return generation >= 1 && generation <= 6 ? width * kSpeed[generation] / 80.0 : 0;
}

const char* name_of(PathClass c) {
  constexpr const char* kNames[] = {"self", "nvlink", "nvswitch", "pix", "pxb", "phb", "node", "sys", "net", "unknown"};
  return kNames[int(c)];
}

const char* name_of(Severity s) {
  constexpr const char* kNames[] = {"info", "warning", "error"};
  return kNames[int(s)];
}

std::string DevicePair::str() const {
  switch (path) {
    case PathClass::self:
      return "X";
    case PathClass::nvlink:
    case PathClass::nvswitch:
      return "NV" + std::to_string(nvlinks);
    case PathClass::pix:
      return "PIX";
    case PathClass::pxb:
      return "PXB";
    case PathClass::phb:
      return "PHB";
    case PathClass::node:
      return "NODE";
    case PathClass::sys:
      return "SYS";
    case PathClass::net:
      return "NET";
    case PathClass::unknown:
      break;
  }
  return "?";
}

bool NicDevice::as_good_as(const NicDevice& other) const {
  return infiniband == other.infiniband && (!gbps || !other.gbps || *gbps >= 0.9 * *other.gbps);
}

int Topology::host_of(int device) const {
  return device < int(gpus.size()) ? gpus[size_t(device)].host : nics[size_t(device) - gpus.size()].host;
}

std::string Topology::host_name(int host) const {
  const std::string& name = hosts[size_t(host)].name;
  bool unique =
      !name.empty() && std::count_if(hosts.begin(), hosts.end(), [&](auto& h) { return h.name == name; }) == 1;
  return unique ? name : "host" + std::to_string(host);
}

std::string Topology::device_name(int device) const {
  bool gpu = device < int(gpus.size());
  std::string name = gpu ? "GPU" + std::to_string(gpus[size_t(device)].index)
                         : "NIC" + std::to_string(nics[size_t(device) - gpus.size()].index);
  return hosts.size() > 1 ? host_name(host_of(device)) + ":" + name : name;
}

std::optional<int> Topology::nvlink_via(int a, int b) const {
  for (int k = 0; k < int(gpus.size()); ++k)
    if (k != a && k != b && pair(a, k).nvlinks > 0 && pair(k, b).nvlinks > 0) return k;
  return std::nullopt;
}

std::vector<int> Topology::nearest_nics(int gpu) const {
  std::vector<int> nearest;
  PathClass best = PathClass::unknown;
  for (int n = 0; n < int(nics.size()); ++n) {
    const PathClass path = nic_pair(gpu, n).path;
    if (!nics[size_t(n)].up || nics[size_t(n)].host != gpus[size_t(gpu)].host || path == PathClass::unknown) continue;
    if (path < best) nearest.clear(), best = path;
    if (path == best) nearest.push_back(n);
  }
  return nearest;
}

bool Topology::nic_is_far(int gpu, int nic) const {
  if (nic_pair(gpu, nic).path != PathClass::sys) return false;
  const std::optional<int> mine = gpus[size_t(gpu)].numa;
  std::optional<int> its = nics[size_t(nic)].numa;
  for (int g = 0; g < int(gpus.size()) && !its; ++g)
    if (gpus[size_t(g)].host == nics[size_t(nic)].host && nic_pair(g, nic).path < PathClass::sys)
      its = gpus[size_t(g)].numa;
  return !mine || !its || *mine != *its;
}

std::vector<std::vector<int>> Topology::islands() const {
  int n = int(gpus.size());
  std::vector<int> leader(static_cast<size_t>(n));
  std::iota(leader.begin(), leader.end(), 0);
  auto find = [&](int i) {
    while (leader[size_t(i)] != i) i = leader[size_t(i)] = leader[size_t(leader[size_t(i)])];
    return i;
  };
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j)
      if (i != j && pair(i, j).nvlinks > 0) leader[size_t(std::max(find(i), find(j)))] = std::min(find(i), find(j));
  std::vector<std::vector<int>> sets;
  std::vector<int> place(size_t(n), -1);
  for (int i = 0; i < n; ++i) {
    int& at = place[size_t(find(i))];
    if (at < 0) {
      at = int(sets.size());
      sets.emplace_back();
    }
    sets[size_t(at)].push_back(i);
  }
  return sets;
}

bool Topology::all_pairs_nvswitch() const {
  bool any = false;
  for (int i = 0; i < int(gpus.size()); ++i)
    for (int j = 0; j < int(gpus.size()); ++j)
      if (i != j && gpus[size_t(i)].host == gpus[size_t(j)].host) {
        if (pair(i, j).path != PathClass::nvswitch) return false;
        any = true;
      }
  return any;
}

std::string Topology::fingerprint() const {
  std::string text;
  auto add = [&](const auto&... parts) { text += detail::concat(parts..., ';'); };
  for (const HostInfo& h : hosts)
    add(h.arch, ' ', h.cpu_vendor, ' ', h.cpu_family.value_or(-1), ' ', h.cpu_model_number.value_or(-1), ' ', h.driver,
        ' ', h.nccl);
  std::vector<int> order(static_cast<size_t>(devices()));
  std::iota(order.begin(), order.end(), 0);
  auto key = [&](int d) {
    bool gpu = d < int(gpus.size());
    const auto& pci = gpu ? gpus[size_t(d)].pci : nics[size_t(d) - gpus.size()].pci;
    int index = gpu ? gpus[size_t(d)].index : nics[size_t(d) - gpus.size()].index;
    return std::tuple(!gpu, host_of(d), pci.value_or(PciAddress{}), index);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
  for (int d : order) {
    if (d < int(gpus.size())) {
      const GpuDevice& g = gpus[size_t(d)];
      add("gpu ", g.host, ' ', g.sm.value_or(0), ' ', g.name, ' ', g.pcie_max.generation, 'x', g.pcie_max.width, ' ',
          g.numa.value_or(-1));
    } else {
      const NicDevice& n = nics[size_t(d) - gpus.size()];
      add("nic ", n.host, ' ', n.gbps.value_or(0), ' ', n.up, n.gpudirect);
    }
  }
  for (int a : order)
    for (int b : order) add(pair(a, b).str(), int(pair(a, b).path), ' ', pair(a, b).gbps.value_or(0));
  return hex(fnv1a(text));
}

Topology parse_topology(const std::string& text, const std::string& origin, const Topology* here) {
  size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  XY_CHECK(first != std::string::npos, origin,
           " is empty: expected a topology (NCCL's XML, `nvidia-smi topo -m`, JSON)");
  XY_CHECK(!text.starts_with("\xff\xfe") && !text.starts_with("\xfe\xff"), origin,
           " is UTF-16: save it as UTF-8, such as with iconv -f UTF-16 -t UTF-8");
  if (text[first] == '<') return parse_nccl_xml(text, origin, here);
  if (text[first] == '{') return parse_topology_json(text, origin);
  return parse_topo_m(text.starts_with("\xef\xbb\xbf") ? text.substr(3) : text, origin);
}

Topology load_topology(const std::string& file, const Topology* here) {
  return parse_topology(read_file(file), file, here);
}

Topology replicate(const Topology& host, int n) {
  XY_CHECK(n >= 1, "a job has at least one node, not ", n);
  XY_CHECK(host.hosts.size() <= 1, "only a topology of one host can be repeated; this one has ", host.hosts.size());
  if (n == 1) return host;
  Topology t = host;
  if (t.hosts.empty()) t.hosts.emplace_back();
  for (HostInfo& h : t.hosts) h.name.clear();
  HostInfo info = t.hosts[0];
  auto repeat = [&](auto& list) {
    auto one = list;
    for (int k = 1; k < n; ++k)
      for (auto item : one) {
        item.host = k;
        list.push_back(item);
      }
  };
  repeat(t.gpus);
  repeat(t.nics);
  repeat(t.numa);
  repeat(t.bridges);
  repeat(t.switches);
  repeat(t.unknown);
  t.hosts.assign(size_t(n), info);
  t.links.clear();
  for (int k = 0; k < n; ++k) {
    std::string prefix = "host" + std::to_string(k) + ":";
    for (FabricLink link : host.links) {
      link.a = prefix + link.a;
      link.b = prefix + link.b;
      t.links.push_back(link);
    }
    for (const NicDevice& nic : host.nics)
      t.links.push_back({.a = prefix + "NIC" + std::to_string(nic.index),
                         .b = "Network",
                         .kind = LinkKind::network,
                         .count = 1,
                         .gbps = nic.gbps,
                         .up = nic.up});
  }
  std::optional<double> best;
  for (const NicDevice& nic : host.nics)
    if (nic.up && nic.gbps) best = std::max(best.value_or(0), *nic.gbps);
  int g = int(host.gpus.size()), all = t.devices();
  DevicePair across;
  across.path = PathClass::net;
  across.gbps = best;
  auto original = [&](int d) { return d < g * n ? d % g : g + (d - g * n) % std::max(1, int(host.nics.size())); };
  t.pairs.assign(size_t(all), std::vector<DevicePair>(size_t(all)));
  for (int i = 0; i < all; ++i)
    for (int j = 0; j < all; ++j)
      t.pairs[size_t(i)][size_t(j)] = t.host_of(i) == t.host_of(j) ? host.pair(original(i), original(j)) : across;
  return t;
}

}  // namespace xylem
