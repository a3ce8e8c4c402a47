// SPDX-License-Identifier: Apache-2.0
#include "distributed/launch/rank_info.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <link.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/device/device.h"
#include "core/device/info.h"
#include "core/util/hash.h"
#include "core/util/parallel.h"
#include "distributed/launch/bind.h"
#include "distributed/topology/cpulist.h"

#ifdef XY_WITH_CUDA
#include <cuda_runtime.h>
#endif

extern "C" char** environ;

namespace xylem {
namespace {

namespace fs = std::filesystem;

std::string read_line(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

// The build ids that the linker left in the program and in this library; the file's size where there is none.
struct BuildIds {
  uint64_t hash = kFnvStart;
  const void* here = nullptr;
};
int add_build_id(dl_phdr_info* info, size_t, void* data) {
  auto& ids = *static_cast<BuildIds*>(data);
  auto here = reinterpret_cast<uintptr_t>(ids.here);
  bool program = !info->dlpi_name || !*info->dlpi_name, ours = false, found = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& h = info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + h.p_vaddr;
    ours |= h.p_type == PT_LOAD && here >= begin && here < begin + h.p_memsz;
  }
  if (!ours && (!program || std::strncmp(info->dlpi_name ? info->dlpi_name : "", "linux-vdso", 10) == 0)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& h = info->dlpi_phdr[i];
    if (h.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + h.p_vaddr);
    const char* end = at + h.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const char* name = at + sizeof *note;
      const char* value = name + (note->n_namesz + 3) / 4 * 4;
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        ids.hash = fnv1a({value, note->n_descsz}, ids.hash);
        found = true;
      }
      at = value + (note->n_descsz + 3) / 4 * 4;
    }
  }
  if (!found) {
    std::error_code ignored;
    auto size = fs::file_size(program ? "/proc/self/exe" : info->dlpi_name, ignored);
    ids.hash = fnv1a({reinterpret_cast<const char*>(&size), sizeof size}, ids.hash);
  }
  return 0;
}
std::string executable_id() {
  static const char marker = 0;
  BuildIds ids{.here = &marker};
  dl_iterate_phdr(add_build_id, &ids);
  return hex(ids.hash);
}

int version_of(const char* function) {
  int v = 0;
  if (auto* f = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, function))) f(&v);
  return v;
}

std::vector<NetworkInterface> list_interfaces() {
  std::vector<NetworkInterface> list;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return list;
  for (ifaddrs* i = all; i; i = i->ifa_next) {
    if (!i->ifa_addr || !i->ifa_netmask || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING)) continue;
    bool v4 = i->ifa_addr->sa_family == AF_INET, v6 = i->ifa_addr->sa_family == AF_INET6;
    if (!v4 && !v6) continue;
    char text[INET6_ADDRSTRLEN] = "";
    const void* address = v4 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr)
                             : &reinterpret_cast<sockaddr_in6*>(i->ifa_addr)->sin6_addr;
    const auto* mask =
        v4 ? reinterpret_cast<const unsigned char*>(&reinterpret_cast<sockaddr_in*>(i->ifa_netmask)->sin_addr)
           : reinterpret_cast<const unsigned char*>(&reinterpret_cast<sockaddr_in6*>(i->ifa_netmask)->sin6_addr);
    inet_ntop(i->ifa_addr->sa_family, address, text, sizeof text);
    if (std::string_view(text).starts_with("fe80")) continue;  // of the link alone
    int prefix = 0;
    for (int b = 0; b < (v4 ? 4 : 16); ++b) prefix += __builtin_popcount(mask[b]);
    list.push_back({i->ifa_name, text, prefix, (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(all);
  return list;
}

bool has_infiniband() {
  std::error_code ignored;
  return !fs::is_empty("/sys/class/infiniband", ignored) && !ignored;
}

}  // namespace

std::string hash_text(const std::string& text) { return hex(fnv1a(text)); }

RankInfo describe_this_process() {
  const World& w = world();
  RankInfo r;
  r.rank = w.rank, r.local_rank = w.local_rank, r.local_size = w.local_size, r.node = w.node;
  r.host = w.host;
  r.boot_id = read_line("/proc/sys/kernel/random/boot_id");
  r.pid = ::getpid();
  std::error_code ignored;
  r.pid_namespace = fs::read_symlink("/proc/self/ns/pid", ignored).string();
  r.gpus = cuda_device_count();
  const char* share = std::getenv("XY_SHARE_GPU");
  r.share_gpu = share && std::string_view(share) != "0" && *share;
  std::vector<int> mask = current_cpus();
  r.cpus = format_cpulist(mask);
  r.cpu_count = int(mask.size());
  r.cpus_of_machine = int(sysconf(_SC_NPROCESSORS_ONLN));
  r.threads = num_threads();
  r.executable = executable_id();
  r.version = XY_VERSION;
  r.cuda = version_of("cudaRuntimeGetVersion");
  r.driver = version_of("cudaDriverGetVersion");
  r.nccl = version_of("ncclGetVersion");
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) r.shm_bytes = int64_t(shm.f_blocks) * int64_t(shm.f_frsize);
  rlimit lock{};
  if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY) r.memlock_bytes = int64_t(lock.rlim_cur);
  r.infiniband = has_infiniband();
  for (char** e = environ; e && *e; ++e)
    if (std::string_view variable = *e; variable.starts_with("NCCL_"))
      if (size_t equal = variable.find('='); equal != variable.npos)
        r.nccl_variables[std::string(variable.substr(0, equal))] = variable.substr(equal + 1);
  r.interfaces = list_interfaces();
  return r;
}

std::string pci_of_gpu([[maybe_unused]] int cuda_index) {
#ifdef XY_WITH_CUDA
  char text[32] = "";
  if (cudaDeviceGetPCIBusId(text, sizeof text, cuda_index) == cudaSuccess) {
    for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));  // as in sysfs
    return text;
  }
#endif
  return "";
}

std::optional<int> numa_of_pci(const std::string& pci) {
  std::string text = read_line("/sys/bus/pci/devices/" + pci + "/numa_node");
  if (pci.empty() || text.empty() || text[0] == '-') return {};
  return std::atoi(text.c_str());
}

std::string nearest_nic(const std::string& pci) {
  std::error_code ignored;
  std::string best;
  if (pci.empty()) return best;
  fs::path gpu = fs::canonical("/sys/bus/pci/devices/" + pci, ignored);
  long best_score = -1;
  std::vector<fs::path> nics;
  for (const auto& entry : fs::directory_iterator("/sys/class/infiniband", ignored)) nics.push_back(entry.path());
  std::sort(nics.begin(), nics.end());
  for (const fs::path& nic : nics) {
    fs::path device = fs::canonical(nic / "device", ignored);
    // The longer the common way down from the root of the PCI tree, the nearer; then the same NUMA node.
    auto common = std::mismatch(gpu.begin(), gpu.end(), device.begin(), device.end()).first;
    long score = 2 * std::distance(gpu.begin(), common);
    if (numa_of_pci(device.filename()) == numa_of_pci(pci)) ++score;
    if (score > best_score) best_score = score, best = nic.filename().string();
  }
  return best;
}

std::string nccl_version_text(int v) {
  int major = v >= 10000 ? v / 10000 : v / 1000, rest = v >= 10000 ? v % 10000 : v % 1000;
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}
std::string cuda_version_text(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

std::string to_json(const RankInfo& r) {
  nlohmann::json j = {{"rank", r.rank},
                      {"local_rank", r.local_rank},
                      {"local_size", r.local_size},
                      {"node", r.node},
                      {"host", r.host},
                      {"boot_id", r.boot_id},
                      {"pid", r.pid},
                      {"pid_namespace", r.pid_namespace},
                      {"device", r.device},
                      {"gpu", r.gpu},
                      {"pci", r.pci},
                      {"gpus", r.gpus},
                      {"share_gpu", r.share_gpu},
                      {"cpus", r.cpus},
                      {"cpu_count", r.cpu_count},
                      {"cpus_of_machine", r.cpus_of_machine},
                      {"bound", r.bound},
                      {"threads", r.threads},
                      {"nic", r.nic},
                      {"executable", r.executable},
                      {"arguments", r.arguments},
                      {"config", r.config},
                      {"version", r.version},
                      {"cuda", r.cuda},
                      {"driver", r.driver},
                      {"nccl", r.nccl},
                      {"infiniband", r.infiniband},
                      {"nccl_variables", r.nccl_variables}};
  if (r.numa) j["numa"] = *r.numa;
  if (r.shm_bytes) j["shm_bytes"] = *r.shm_bytes;
  if (r.memlock_bytes) j["memlock_bytes"] = *r.memlock_bytes;
  j["interfaces"] = nlohmann::json::array();
  for (const NetworkInterface& i : r.interfaces)
    j["interfaces"].push_back(
        {{"name", i.name}, {"address", i.address}, {"prefix", i.prefix}, {"loopback", i.loopback}});
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankInfo parse_rank_info(const std::string& text) {
  nlohmann::json j = nlohmann::json::parse(text);
  RankInfo r;
  auto get = [&](const char* key, auto& value) { j.at(key).get_to(value); };
  get("rank", r.rank);
  get("local_rank", r.local_rank);
  get("local_size", r.local_size);
  get("node", r.node);
  get("host", r.host);
  get("boot_id", r.boot_id);
  get("pid", r.pid);
  get("pid_namespace", r.pid_namespace);
  get("device", r.device);
  get("gpu", r.gpu);
  get("pci", r.pci);
  get("gpus", r.gpus);
  get("share_gpu", r.share_gpu);
  get("cpus", r.cpus);
  get("cpu_count", r.cpu_count);
  get("cpus_of_machine", r.cpus_of_machine);
  get("bound", r.bound);
  get("threads", r.threads);
  get("nic", r.nic);
  get("executable", r.executable);
  get("arguments", r.arguments);
  get("config", r.config);
  get("version", r.version);
  get("cuda", r.cuda);
  get("driver", r.driver);
  get("nccl", r.nccl);
  get("infiniband", r.infiniband);
  get("nccl_variables", r.nccl_variables);
  if (j.contains("numa")) r.numa = j["numa"].get<int>();
  if (j.contains("shm_bytes")) r.shm_bytes = j["shm_bytes"].get<int64_t>();
  if (j.contains("memlock_bytes")) r.memlock_bytes = j["memlock_bytes"].get<int64_t>();
  for (const auto& i : j.at("interfaces"))
    r.interfaces.push_back({i.at("name"), i.at("address"), i.at("prefix"), i.at("loopback")});
  return r;
}

std::string launch_report(const std::vector<RankInfo>& ranks) {
  if (ranks.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"rank", "host", "device", "PCI bus id", "NUMA", "CPUs", "NIC", "threads"}};
  for (const RankInfo& r : ranks)
    rows.push_back({std::to_string(r.rank), r.host, r.gpu.empty() ? r.device : r.device + " " + r.gpu,
                    r.pci.empty() ? "-" : r.pci, r.numa ? std::to_string(*r.numa) : "-", r.cpus,
                    r.nic.empty() ? "-" : r.nic, std::to_string(r.threads)});
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  int nodes = 0;
  for (const RankInfo& r : ranks) nodes = std::max(nodes, r.node + 1);
  const RankInfo& first = ranks[0];
  std::string text = std::to_string(ranks.size()) + (ranks.size() == 1 ? " rank on " : " ranks on ") +
                     std::to_string(nodes) + (nodes == 1 ? " host" : " hosts") + ", Xylem " + first.version;
  if (first.cuda) text += ", CUDA " + cuda_version_text(first.cuda);
  if (first.nccl) text += ", NCCL " + nccl_version_text(first.nccl);
  bool bound = std::any_of(ranks.begin(), ranks.end(), [](const RankInfo& r) { return r.bound; });
  text += bound ? "; ranks bound to CPUs and memory by Xylem (XY_BIND=0 leaves them alone)\n" : "\n";
  for (const auto& row : rows) {
    text += " ";
    for (size_t c = 0; c < row.size(); ++c)
      text += " " + row[c] + (c + 1 < row.size() ? std::string(widths[c] - row[c].size() + 1, ' ') : "");
    text += "\n";
  }
  return text;
}

}  // namespace xylem
