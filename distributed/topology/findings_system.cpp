// SPDX-License-Identifier: Apache-2.0
// The state of the GPUs, the limits of the process, and hosts that differ.
#include <algorithm>
#include <map>
#include <set>

#include "core/util/text.h"
#include "distributed/topology/cpulist.h"
#include "distributed/topology/findings_internal.h"

namespace xylem::detail {
namespace {

// Appends one finding for all GPUs of which `has` is true.
template <class Has>
void add_for(const Topology& t, Findings& out, Has has, Finding f) {
  std::vector<int> gpus;
  for (int i = 0; i < int(t.gpus.size()); ++i)
    if (has(t.gpus[size_t(i)])) gpus.push_back(i);
  if (gpus.empty()) return;
  f.subjects = gpu_names(t, gpus);
  f.what = gpu_list(t, gpus) + ": " + f.what;
  out.push_back(std::move(f));
}

// A few repeated transfers in months are nothing; many, or some within a second of copies, are a cable or a slot.
void find_link_errors(const Topology& t, Findings& out) {
  constexpr uint64_t kMany = 1000;
  auto judge = [&](const char* code, const char* what, const char* remedy, auto total, auto load) {
    std::vector<int> growing, many, few;
    for (int i = 0; i < int(t.gpus.size()); ++i) {
      const GpuDevice& g = t.gpus[size_t(i)];
      if ((g.*total).value_or(0) == 0 && (g.*load).value_or(0) == 0) continue;
      ((g.*load).value_or(0) > 0 ? growing : (g.*total).value_or(0) >= kMany ? many : few).push_back(i);
    }
    auto add = [&](const std::vector<int>& gpus, Severity severity, const char* how, auto count, const char* since) {
      if (gpus.empty()) return;
      std::vector<std::string> evidence;
      for (int i : gpus)
        evidence.push_back(t.device_name(i) + ": " + std::to_string((t.gpus[size_t(i)].*count).value_or(0)));
      out.push_back(
          {code, severity, gpu_names(t, gpus), gpu_list(t, gpus) + ": " + what + how, joined(evidence) + since,
           severity == Severity::info ? "harmless if it stays at that"
                                      : "repeated transfers cost bandwidth, and the link may fail",
           severity == Severity::info ? "xylem doctor --measure tells whether they grow under load" : remedy});
    };
    add(growing, Severity::warning, " while copies run", load, " during the measurement");
    add(many, Severity::warning, ", many", total, " since the driver was loaded");
    add(few, Severity::info, ", a few", total, " since the driver was loaded");
  };
  judge("NVLINK_ERRORS", "NVLink repeats transfers",
        "nvidia-smi nvlink -e names the link; reseat the bridge or board, or have it replaced",
        &GpuDevice::nvlink_errors, &GpuDevice::nvlink_errors_load);
  judge("PCIE_REPLAYS", "PCIe repeats transfers",
        "reseat the card; try another slot, riser or cable; dmesg shows corrected errors (AER)",
        &GpuDevice::pcie_replays, &GpuDevice::pcie_replays_load);
}

}  // namespace

void find_gpu_problems(const Topology& t, Findings& out) {
  add_for(t, out, [](auto& g) { return g.mig == true; },
          {"MIG_ON",
           Severity::warning,
           {},
           "MIG is on",
           "MIG mode: enabled",
           "slices of a GPU have no NVLink and no peer access; NCCL joins at most one slice of each GPU",
           "nvidia-smi -i N -mig 0 (needs root and an idle GPU), or use the slices one process each"});
  add_for(t, out, [](auto& g) { return g.exclusive_compute == true; },
          {"COMPUTE_EXCLUSIVE",
           Severity::warning,
           {},
           "one process at a time may use the GPU",
           "compute mode: EXCLUSIVE_PROCESS or PROHIBITED",
           "a second process (another rank, a profiler, an evaluation) fails with error 46, devices unavailable",
           "nvidia-smi -i N -c DEFAULT"});
  add_for(t, out, [](auto& g) { return g.persistence == false; },
          {"PERSISTENCE_OFF",
           Severity::info,
           {},
           "persistence mode is off",
           "persistence mode: disabled",
           "the driver unloads its state between jobs: starts take seconds longer",
           "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"});
  add_for(t, out, [](auto& g) { return g.ecc_errors == true; },
          {"ECC_ERRORS",
           Severity::error,
           {},
           "uncorrected memory errors since the driver was loaded",
           "the counter of uncorrected ECC errors is not 0",
           "jobs on it crash (Xid 48, 63, 64, 94, 95), or worse, do not",
           "nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU to remap the rows, have it replaced if errors come back"});
  constexpr uint64_t kHardware = 0x8 | 0x40 | 0x80, kThermal = 0x20;
  add_for(t, out, [](auto& g) { return (g.throttle_reasons.value_or(0) & (kHardware | kThermal)) != 0; },
          {"THROTTLED",
           Severity::warning,
           {},
           "the clock is held down (heat or power)",
           "clock event reasons: hardware slowdown, thermal slowdown or power brake",
           "one slow GPU slows every rank of the job",
           "nvidia-smi -q -d PERFORMANCE,TEMPERATURE; check cooling and power supply"});
  find_link_errors(t, out);
  std::map<int, std::set<std::string>> models;
  for (const GpuDevice& g : t.gpus)
    if (!g.name.empty()) models[g.host].insert(g.name);
  for (auto& [host, names] : models)
    if (names.size() > 1)
      out.push_back(
          {"GPUS_MIXED",
           Severity::info,
           {},
           "different GPU models on one host",
           joined({names.begin(), names.end()}),
           "equal shares of the work wait for the slowest model; results may differ in the last bits between models",
           "use GPUs of one model (CUDA_VISIBLE_DEVICES)"});
}

void find_limit_problems(const Topology& t, const Environment& e, Findings& out) {
  bool several = t.gpus.size() > 1 || e.ranks_on_host > 1;
  bool container = !t.hosts.empty() && t.hosts[0].container,
       virtual_machine = !t.hosts.empty() && t.hosts[0].virtual_machine;
  bool infiniband = std::any_of(t.nics.begin(), t.nics.end(), [](auto& n) { return n.infiniband || n.gpudirect; });
  std::string docker = container ? "start the container with " : "";
  if (!e.driver_error.empty())
    out.push_back({"DRIVER_BROKEN",
                   Severity::error,
                   {},
                   "the NVIDIA driver does not answer: " + e.driver_error,
                   "asked through libnvidia-ml",
                   "no GPU can be used",
                   e.driver_error.find("mismatch") != std::string::npos
                       ? "the driver was updated under the running kernel: reboot, or unload and load the modules"
                       : "nvidia-smi and dmesg say more; in a container start it with --gpus all"});
  if (e.nvidia_on_pci && *e.nvidia_on_pci > int(t.gpus.size()) && e.driver_error.empty())
    out.push_back({"GPUS_HIDDEN",
                   Severity::info,
                   {},
                   "the machine has " + std::to_string(*e.nvidia_on_pci) + " NVIDIA GPUs, the driver gives " +
                       std::to_string(t.gpus.size()),
                   "seen on the PCI bus",
                   "a job uses those it is given",
                   t.gpus.empty()
                       ? "install the driver; in a container start it with --gpus all"
                       : "usual in containers and under batch systems; otherwise look at dmesg for a lost GPU"});
  if (several && e.shm_bytes && *e.shm_bytes < int64_t(512) << 20)
    out.push_back(
        {"SHM_SMALL",
         *e.shm_bytes <= int64_t(64) << 20 ? Severity::error : Severity::warning,
         {},
         "/dev/shm has " + human_bytes(double(*e.shm_bytes)),
         "statvfs of /dev/shm",
         "NCCL and MPI pass data between processes through it: \"unhandled system error\" or a bus error",
         container ? "start the container with --shm-size=1g or --ipc=host" : "mount -o remount,size=8G /dev/shm"});
  if (infiniband && e.memlock_bytes && *e.memlock_bytes < int64_t(1) << 30)
    out.push_back(
        {"MEMLOCK_LOW",
         Severity::warning,
         {},
         "a process may lock only " + human_bytes(double(*e.memlock_bytes)) + " of memory",
         "ulimit -l",
         "InfiniBand buffers cannot be registered: NCCL falls back to sockets or fails",
         container
             ? docker + "--ulimit memlock=-1"
             : "memlock unlimited in /etc/security/limits.d, and LimitMEMLOCK=infinity for the batch system's daemon"});
  if (several && e.open_files && *e.open_files < 1024)
    out.push_back({"FILES_LOW",
                   Severity::warning,
                   {},
                   "a process may open only " + std::to_string(*e.open_files) + " files",
                   "ulimit -n",
                   "NCCL opens several sockets for each peer and channel: large jobs fail in their start",
                   docker + (container ? "--ulimit nofile=65536" : "ulimit -n 65536")});
  std::vector<int> allowed = parse_cpulist(e.allowed_cpus).value_or(std::vector<int>{}),
                   online = parse_cpulist(e.online_cpus).value_or(std::vector<int>{});
  if (!t.gpus.empty() && !allowed.empty() && allowed.size() < 4 && online.size() >= 8)
    out.push_back(
        {"CPUS_FEW",
         Severity::warning,
         {},
         "this process may use " + std::to_string(allowed.size()) + " of " + std::to_string(online.size()) + " CPUs",
         "CPU mask: " + e.allowed_cpus,
         "NCCL's threads, the data loader and the training loop share them: collectives up to ten times slower",
         "mpirun --bind-to none (Xylem binds by itself), srun --cpus-per-task=8"});
  std::vector<int> far;
  for (int i = 0; i < int(t.gpus.size()); ++i)
    if (!allowed.empty() && !t.gpus[size_t(i)].cpus.empty() &&
        common_cpus(e.allowed_cpus, t.gpus[size_t(i)].cpus).empty())
      far.push_back(i);
  // `nvidia-smi topo -m` leaves the cell empty where the job may use no CPU of the GPU's node.
  bool some = std::any_of(t.gpus.begin(), t.gpus.end(), [](auto& g) { return !g.cpus.empty(); });
  for (int i = 0; i < int(t.gpus.size()); ++i)
    if (t.source == TopologySource::topo_m && some && t.gpus[size_t(i)].cpus.empty() && t.gpus[size_t(i)].numa)
      far.push_back(i);
  if (!far.empty())
    out.push_back({"CPUS_FAR", Severity::warning, gpu_names(t, far), "no allowed CPU is local to " + gpu_list(t, far),
                   allowed.empty() || t.source == TopologySource::topo_m ? "their CPU affinity is empty"
                                                                         : "allowed: " + e.allowed_cpus,
                   "copies and launches cross the sockets: lower bandwidth, higher latency",
                   "ask the batch system for CPUs on every node (srun --cpus-per-gpu, --gpu-bind=closest), or use the "
                   "GPUs whose CPUs you have"});
  bool all_nvlink = t.gpus.size() > 1 && t.islands().size() == 1;
  if (t.gpus.size() > 1 && !virtual_machine && e.acs_redirects && !e.acs_redirects->empty()) {
    std::vector<std::string> bridges;
    for (const PciAddress& b : *e.acs_redirects) bridges.push_back(b.str());
    out.push_back({"ACS_ON",
                   all_nvlink ? Severity::info : Severity::warning,
                   {},
                   "PCIe bridges send traffic between devices up to the root (ACS)",
                   "ACS redirect is on at " + std::to_string(bridges.size()) + " bridges: " + joined(bridges),
                   "peer copies and GPUDirect RDMA take the way through the CPU: slow, and on some machines they hang",
                   "turn ACS off in the BIOS, or as root: setpci -s " + bridges[0] +
                       " ECAP_ACS+6.w=0000 (each bridge, "
                       "after every boot)"});
  }
  if (t.gpus.size() > 1 && !virtual_machine && e.iommu_translates == true)
    out.push_back({"IOMMU_ON",
                   all_nvlink ? Severity::info : Severity::warning,
                   {},
                   "the IOMMU translates the addresses of devices",
                   "an IOMMU group is of type DMA",
                   "peer copies over PCIe are slow, and on some machines arrive damaged or hang",
                   "boot with iommu=pt (pass-through) or intel_iommu=off; xylem topo --measure checks the copies"});
}

void find_host_differences(const Topology& t, Findings& out) {
  if (t.hosts.size() < 2) return;
  auto compare = [&](const char* code, Severity severity, const std::string& what, const char* impact,
                     const char* remedy, auto value) {
    std::map<std::string, std::vector<std::string>> groups;
    for (int h = 0; h < int(t.hosts.size()); ++h)
      if (std::string v = value(h); !v.empty()) groups[v].push_back(t.host_name(h));
    if (groups.size() < 2) return;
    std::vector<std::string> lists, subjects;
    auto most = std::max_element(groups.begin(), groups.end(),
                                 [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
    for (auto& [v, hosts] : groups) {
      lists.push_back(v + " on " + (hosts.size() > 4 ? std::to_string(hosts.size()) + " hosts" : joined(hosts)));
      if (v != most->first) subjects.insert(subjects.end(), hosts.begin(), hosts.end());
    }
    out.push_back({code, severity, subjects, what, joined(lists, "; "), impact, remedy});
  };
  auto gpus = [&](int h) {
    std::map<std::string, int> counts;
    for (const GpuDevice& g : t.gpus)
      if (g.host == h) ++counts[g.name.empty() ? "GPU" : g.name];
    std::vector<std::string> parts;
    for (auto& [name, n] : counts) parts.push_back(std::to_string(n) + " x " + name);
    return joined(parts);
  };
  compare("HOSTS_DIFFER_GPU", Severity::warning, "the hosts have different GPUs",
          "ranks with equal work wait for the slowest; NCCL may choose slower algorithms",
          "use hosts of one kind (a partition or constraint of the batch system)", gpus);
  compare("HOSTS_DIFFER_NCCL", Severity::error, "the hosts use different versions of NCCL",
          "NCCL refuses to start, or hangs", "load the same module or container everywhere",
          [&](int h) { return t.hosts[size_t(h)].nccl; });
  compare("HOSTS_DIFFER_DRIVER", Severity::warning, "the hosts have different drivers",
          "features differ between hosts (multicast, CUDA version): start-up may fail on some",
          "update all hosts together", [&](int h) { return t.hosts[size_t(h)].driver; });
  compare(
      "HOSTS_DIFFER_CPU", Severity::error, "the hosts have CPUs of different makers",
      "NCCL's cost model depends on the maker: hosts chose different algorithms for one call and hung",
      "keep a job on one kind of host, or pin algorithm and protocol (Xylem's plan does: it is the same on all ranks)",
      [&](int h) { return t.hosts[size_t(h)].cpu_vendor; });
}

}  // namespace xylem::detail
