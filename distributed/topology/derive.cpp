// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/derive.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>

#include "distributed/topology/gpu_model.h"

namespace xylem {
namespace {

std::optional<double> narrower(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return std::nullopt;
  return std::min(*a, *b);
}

std::optional<int> numa_of(const Topology& t, size_t device) {
  return device < t.gpus.size() ? t.gpus[device].numa : t.nics[device - t.gpus.size()].numa;
}

PathClass pci_class(const PciPlace& a, const PciPlace& b, int pix_depth) {
  for (size_t i = 0; i < a.bridges.size(); ++i) {
    auto common = std::find(b.bridges.begin(), b.bridges.end(), a.bridges[i]);
    if (common == b.bridges.end()) continue;
    bool near = int(i) < pix_depth && int(common - b.bridges.begin()) < pix_depth;
    return near ? PathClass::pix : PathClass::pxb;
  }
  return PathClass::phb;
}

}  // namespace

void derive_pci_pairs(Topology& t, const std::vector<PciPlace>& places, int pix_depth) {
  size_t n = size_t(t.devices());
  t.pairs.assign(n, std::vector<DevicePair>(n));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      DevicePair& p = t.pairs[i][j];
      const PciPlace &a = places[i], &b = places[j];
      int host = t.host_of(int(i));
      if (i == j) {
        p.path = PathClass::self;
      } else if (host != t.host_of(int(j))) {
        p.path = PathClass::net;
      } else if (a.root.empty() || b.root.empty()) {
        p.path = PathClass::unknown;
      } else if (a.root == b.root) {
        p.path = pci_class(a, b, pix_depth);
        p.gbps = narrower(a.gbps, b.gbps);
      } else if (auto x = numa_of(t, i), y = numa_of(t, j); x && y) {
        p.path = *x == *y ? PathClass::node : PathClass::sys;
        p.gbps = narrower(a.gbps, b.gbps);
        if (p.path == PathClass::sys) p.gbps = narrower(p.gbps, socket_link_gbps(t.hosts[size_t(host)]));
      }
    }
}

void add_nvlinks(Topology& t, const std::vector<NvlinkEnd>& ends, bool one_domain) {
  std::map<std::pair<int, PciAddress>, int> gpu_at, switch_at;
  for (int i = 0; i < int(t.gpus.size()); ++i)
    if (t.gpus[size_t(i)].pci) gpu_at[{t.gpus[size_t(i)].host, *t.gpus[size_t(i)].pci}] = i;
  constexpr PciAddress kNoAddress{UINT32_MAX, 0xff, 0xff, 7};
  std::vector<int> switched(t.gpus.size());
  std::map<std::pair<int, int>, int> direct;  // (from, to) -> count
  std::map<int, int> at_host;                 // switches counted so far
  for (const NvlinkEnd& end : ends) {
    const GpuDevice& gpu = t.gpus[size_t(end.gpu)];
    std::optional<double> each = nvlink_gbps(gpu);
    FabricLink link{.a = t.device_name(end.gpu), .b = "", .kind = LinkKind::nvlink, .count = end.count, .gbps = {}};
    if (each) link.gbps = *each * end.count;
    if (end.to_switch) {
      int host = one_domain ? 0 : gpu.host;
      auto [at, fresh] = switch_at.try_emplace({host, end.target.value_or(kNoAddress)}, 0);
      if (fresh) {
        at->second = at_host[host]++;
        t.switches.push_back({.index = at->second, .host = host, .pci = end.target});
      }
      std::string prefix = t.hosts.size() > 1 ? t.host_name(host) + ":" : "";
      link.b = prefix + "NVSwitch" + std::to_string(at->second);
      switched[size_t(end.gpu)] += end.count;
      t.links.push_back(link);
      continue;
    }
    auto peer = end.target ? gpu_at.find({gpu.host, *end.target}) : gpu_at.end();
    if (peer == gpu_at.end()) {
      link.b = end.target ? end.target->str() : "?";
      t.links.push_back(link);
    } else if (peer->second != end.gpu) {  // a link to itself says nothing about where it leads
      direct[{end.gpu, peer->second}] += end.count;
    }
  }
  for (auto [pair, count] : direct) {
    auto [a, b] = pair;
    DevicePair& p = t.pairs[size_t(a)][size_t(b)];
    std::optional<double> each = nvlink_gbps(t.gpus[size_t(a)]);
    p.path = PathClass::nvlink;
    p.nvlinks = count;
    p.gbps = each ? std::optional(*each * count) : std::nullopt;
    auto back = direct.find({b, a});
    if (a < b || back == direct.end())
      t.links.push_back({.a = t.device_name(a),
                         .b = t.device_name(b),
                         .kind = LinkKind::nvlink,
                         .count = std::max(count, back == direct.end() ? 0 : back->second),
                         .gbps = p.gbps});
  }
  for (size_t i = 0; i < t.gpus.size(); ++i)
    for (size_t j = 0; j < t.gpus.size(); ++j)
      if (i != j && switched[i] && switched[j] && (one_domain || t.gpus[i].host == t.gpus[j].host)) {
        DevicePair& p = t.pairs[i][j];
        std::optional<double> each = nvlink_gbps(t.gpus[i]);
        p.path = PathClass::nvswitch;
        p.nvlinks = switched[i];
        p.gbps = each ? std::optional(*each * std::min(switched[i], switched[j])) : std::nullopt;
      }
}

std::optional<double> nvlink_gbps(const GpuDevice& gpu) {
  if (!gpu.sm) return std::nullopt;
  return nvlink_gbps_of_sm(*gpu.sm);
}

std::optional<double> socket_link_gbps(const HostInfo& host) {
  if (host.cpu_vendor == "GenuineIntel" && host.cpu_model_number) {
    int model = *host.cpu_model_number;
    return model >= 0xcf ? 40 : model >= 0x8f ? 22 : model >= 0x55 ? 10 : 6;
  }
  if (host.cpu_vendor == "AuthenticAMD") return 16;
  if (host.arch == "arm64" || host.arch == "aarch64") return 6;
  if (host.arch == "ppc64" || host.arch == "ppc64le") return 32;
  return std::nullopt;
}

void complete_from_name(GpuDevice& gpu) {
  if (const GpuModel* model = find_gpu_model(gpu.name))
    if (!gpu.sm) gpu.sm = model->sm;
}

std::optional<DevicePair> parse_pair_word(std::string_view word) {
  static constexpr std::pair<std::string_view, PathClass> kWords[] = {
      {"X", PathClass::self},    {"PIX", PathClass::pix},  {"PXB", PathClass::pxb},     {"PHB", PathClass::phb},
      {"NODE", PathClass::node}, {"SYS", PathClass::sys},  {"SOC", PathClass::sys},     {"NET", PathClass::net},
      {"?", PathClass::unknown}, {"", PathClass::unknown}, {"N/A", PathClass::unknown}, {"-", PathClass::unknown}};
  auto pair = [](PathClass path, int nvlinks = 0) {
    DevicePair p;
    p.path = path;
    p.nvlinks = nvlinks;
    return p;
  };
  for (auto [name, path] : kWords)
    if (word == name) return pair(path);
  if (!word.starts_with("NV")) return std::nullopt;
  int count = 0;
  auto [end, error] = std::from_chars(word.data() + 2, word.data() + word.size(), count);
  if (error != std::errc() || end != word.data() + word.size() || count < 1 || count > 72) return std::nullopt;
  return pair(PathClass::nvlink, count);
}

int generation_of_speed(std::string_view text) {
  std::string copy(text.substr(0, 16));
  double speed = std::strtod(copy.c_str(), nullptr);
  constexpr double kSpeeds[] = {2.5, 5, 8, 16, 32, 64};
  for (int g = 0; g < 6; ++g)
    if (speed == kSpeeds[g]) return g + 1;
  return 0;
}

}  // namespace xylem
