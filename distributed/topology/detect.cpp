// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/detect.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/util/check.h"
#include "distributed/topology/cpulist.h"

extern char** environ;

namespace xylem {
namespace {

std::optional<int64_t> limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(__rlimit_resource_t(resource), &limit) != 0) return std::nullopt;
  return limit.rlim_cur == RLIM_INFINITY ? INT64_MAX : int64_t(limit.rlim_cur);
}

std::string allowed_cpus() {
  cpu_set_t* set = CPU_ALLOC(4096);
  size_t bytes = CPU_ALLOC_SIZE(4096);
  std::vector<int> cpus;
  if (sched_getaffinity(0, bytes, set) == 0)
    for (int c = 0; c < 4096; ++c)
      if (CPU_ISSET_S(size_t(c), bytes, set)) cpus.push_back(c);
  CPU_FREE(set);
  return format_cpulist(cpus);
}

void add_process(Environment& e) {
  for (char** at = environ; at && *at; ++at) {
    std::string entry = *at;
    size_t equal = entry.find('=');
    if (equal == std::string::npos) continue;
    for (const char* prefix : {"NCCL_", "CUDA_", "NVIDIA_", "UCX_", "OMPI_MCA_", "OMP_"})
      if (entry.starts_with(prefix)) e.variables[entry.substr(0, equal)] = entry.substr(equal + 1);
  }
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) e.shm_bytes = int64_t(shm.f_blocks) * int64_t(shm.f_frsize);
  e.memlock_bytes = limit_of(RLIMIT_MEMLOCK);
  e.open_files = limit_of(RLIMIT_NOFILE);
  e.allowed_cpus = allowed_cpus();
  auto file = e.variables.find("NCCL_TOPO_FILE");
  e.topo_file_exists = file == e.variables.end() || access(file->second.c_str(), R_OK) == 0;
}

// The first address of each interface, IPv4 before IPv6; link-local ones lead nowhere.
void add_addresses(Environment& e) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (NetInterface& i : e.interfaces) i.has_address = false;
  for (int family : {AF_INET, AF_INET6})
    for (const ifaddrs* a = list; a; a = a->ifa_next) {
      if (!a->ifa_addr || a->ifa_addr->sa_family != family) continue;
      const auto* four = reinterpret_cast<const sockaddr_in*>(a->ifa_addr);
      const auto* six = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
      char text[INET6_ADDRSTRLEN] = "";
      inet_ntop(family, family == AF_INET ? static_cast<const void*>(&four->sin_addr) : &six->sin6_addr, text,
                sizeof text);
      for (NetInterface& i : e.interfaces)
        if (i.name == a->ifa_name && !i.has_address) {
          i.has_address = true;
          i.address = text;
        }
    }
}

std::string nccl_version() {
  auto* function = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int v = 0;
  if (!function || function(&v) != 0) return "";
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

}  // namespace

Detection detect() {
  SysfsMachine machine = read_sysfs("");
  std::string trouble = add_nvml(machine);
  Topology& t = machine.topology;
  t.hosts[0].nccl = nccl_version();
  if (t.numa.size() > 1)
    for (GpuDevice& g : t.gpus)
      if (!g.numa && g.pci) g.numa = hwloc_numa_node(*g.pci);
  Detection d{machine.topology, machine.environment};
  // A machine without GPUs needs no driver.
  if (!trouble.empty() && d.environment.nvidia_on_pci.value_or(0) > 0) d.environment.driver_error = trouble;
  add_process(d.environment);
  add_addresses(d.environment);
  return d;
}

Topology detect_topology() { return detect().topology; }

Topology join_hosts(const std::vector<Topology>& hosts) {
  XY_CHECK(!hosts.empty(), "a job has at least one host");
  if (hosts.size() == 1) return hosts[0];
  Topology t;
  t.source = hosts[0].source;
  t.origin = std::to_string(hosts.size()) + " hosts";
  for (const Topology& one : hosts) {
    XY_CHECK(one.hosts.size() == 1, "only topologies of one host each can be joined");
    t.hosts.push_back(one.hosts[0]);
  }
  std::vector<std::pair<int, int>> origin;  // of each device: host, device there
  for (int pass = 0; pass < 2; ++pass)
    for (int h = 0; h < int(hosts.size()); ++h) {
      const Topology& one = hosts[size_t(h)];
      auto append = [&](auto& to, auto from) {
        for (auto& item : from) item.host = h;
        to.insert(to.end(), from.begin(), from.end());
      };
      int g = int(one.gpus.size());
      if (pass == 0) {
        append(t.gpus, one.gpus);
        append(t.numa, one.numa);
        append(t.bridges, one.bridges);
        append(t.switches, one.switches);
        append(t.unknown, one.unknown);
        for (int i = 0; i < g; ++i) origin.emplace_back(h, i);
      } else {
        append(t.nics, one.nics);
        for (int i = g; i < one.devices(); ++i) origin.emplace_back(h, i);
        std::string prefix = t.host_name(h) + ":";
        for (FabricLink link : one.links) {
          link.a = prefix + link.a;
          link.b = prefix + link.b;
          t.links.push_back(link);
        }
        for (const NicDevice& nic : one.nics)
          if (nic.up)
            t.links.push_back({.a = prefix + "NIC" + std::to_string(nic.index),
                               .b = "Network",
                               .kind = LinkKind::network,
                               .count = 1,
                               .gbps = nic.gbps});
      }
    }
  auto fastest = [&](int h) {
    std::optional<double> best;
    for (const NicDevice& nic : hosts[size_t(h)].nics)
      if (nic.up && nic.gbps) best = std::max(best.value_or(0), *nic.gbps);
    return best;
  };
  std::vector<std::optional<double>> nic_gbps;
  for (int h = 0; h < int(hosts.size()); ++h) nic_gbps.push_back(fastest(h));
  auto domain = [&](size_t d) -> const NvFabric* {
    if (d >= t.gpus.size() || !t.gpus[d].fabric) return nullptr;
    const NvFabric& f = *t.gpus[d].fabric;
    return f.state == 3 && !f.cluster_uuid.empty() ? &f : nullptr;
  };
  size_t n = origin.size();
  t.pairs.assign(n, std::vector<DevicePair>(n));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      auto [a, x] = origin[i];
      auto [b, y] = origin[j];
      DevicePair& p = t.pairs[i][j];
      if (a == b) {
        p = hosts[size_t(a)].pair(x, y);
        continue;
      }
      p.path = PathClass::net;
      if (nic_gbps[size_t(a)] && nic_gbps[size_t(b)]) p.gbps = std::min(*nic_gbps[size_t(a)], *nic_gbps[size_t(b)]);
      const NvFabric *f = domain(i), *g = domain(j);
      int links = f && g ? std::min(t.gpus[i].nvlinks_active.value_or(0), t.gpus[j].nvlinks_active.value_or(0)) : 0;
      if (links > 0 && f->cluster_uuid == g->cluster_uuid && f->clique == g->clique) {
        p.path = PathClass::nvswitch;
        p.nvlinks = links;
        if (auto each = nvlink_gbps(t.gpus[i])) p.gbps = *each * links;
      }
    }
  return t;
}

}  // namespace xylem
