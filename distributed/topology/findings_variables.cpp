// SPDX-License-Identifier: Apache-2.0
// Environment variables that hurt, or that decide what the plan would.
#include <algorithm>
#include <cctype>
#include <sstream>

#include "distributed/topology/findings_internal.h"

namespace xylem::detail {
namespace {

std::string lower(std::string s) {
  for (char& c : s) c = char(std::tolower(uint8_t(c)));
  return s;
}

bool off(const std::string& v) { return v == "0" || lower(v) == "false" || lower(v) == "off" || lower(v) == "n"; }
bool on(const std::string& v) { return !v.empty() && !off(v); }

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

void judge_algo(const std::string& value, Findings& out) {
  // "[function:]list;function:list"; without a function the first list holds for all of them.
  auto lists = split(value, ';');
  if (lists.empty()) return;
  const std::string first = lower(lists[0]);
  bool prefixed = first.find(':') != std::string::npos, negated = first.starts_with('^');
  auto names = split(first, ',');
  bool ring = std::find(names.begin(), names.end(), "ring") != names.end();
  if (!prefixed && !negated && !ring)
    out.push_back({"NCCL_ALGO_ALL",
                   Severity::error,
                   {},
                   "NCCL_ALGO=" + value + " holds for every collective",
                   "no function before the list",
                   "only ring can broadcast, and only ring and NVLS can gather and scatter: they fail with \"no "
                   "algorithm/protocol available\"",
                   "NCCL_ALGO=allreduce:" + lists[0] + ", or unset it: Xylem's plan chooses by size"});
  else
    out.push_back({"NCCL_ALGO_SET",
                   Severity::info,
                   {},
                   "NCCL_ALGO=" + value + " overrules the plan",
                   "set in the environment",
                   "what it excludes is not available to the plan",
                   "unset it unless this is what you want"});
}

bool stays_on_host(const std::string& name) {
  return name == "lo" || name.starts_with("docker") || name.starts_with("virbr") || name.starts_with("veth");
}

void judge_network(const Environment& e, Findings& out) {
  std::vector<std::string> seen;
  for (const NetInterface& i : e.interfaces) {
    if (i.up && i.has_address && !stays_on_host(i.name)) return;
    seen.push_back(i.name + (!i.up ? " (down)" : !i.has_address ? " (no address)" : ""));
  }
  out.push_back({"NETWORK_LOCAL_ONLY",
                 Severity::error,
                 {},
                 "no interface of this host leads to the others of the job",
                 joined(seen),
                 "NCCL and MPI cannot join the hosts: the start hangs or fails",
                 "bring the network up; in a container start it with --network host"});
}

void judge_interface(const Environment& e, const std::string& value, Findings& out) {
  bool leads_out = false;
  bool excluded = value.starts_with('^'), exact = value.starts_with('=');
  std::vector<std::string> wanted = split(value.substr(excluded || exact ? 1 : 0), ','), usable, chosen;
  for (const NetInterface& i : e.interfaces) {
    bool match = std::any_of(wanted.begin(), wanted.end(),
                             [&](const std::string& w) { return exact ? i.name == w : i.name.starts_with(w); });
    if (!i.up || !i.has_address) continue;
    std::string named = i.address.empty() ? i.name : i.name + " (" + i.address + ")";
    usable.push_back(named);
    if (match == excluded) continue;
    chosen.push_back(named);
    leads_out |= !stays_on_host(i.name);
  }
  if (e.interfaces.empty()) return;
  if (chosen.empty())
    out.push_back({"NCCL_INTERFACE",
                   Severity::error,
                   {},
                   "NCCL_SOCKET_IFNAME=" + value + " matches no interface",
                   "up, with an address: " + joined(usable),
                   "NCCL finds no network and stops",
                   "name one of these; = before it matches exactly, ^ excludes"});
  else if (!leads_out)
    out.push_back({"NCCL_INTERFACE_LOCAL",
                   Severity::warning,
                   {},
                   "NCCL_SOCKET_IFNAME=" + value + " chooses " + joined(chosen) + ", which leads to no other host",
                   "up, with an address: " + joined(usable),
                   "a job over several hosts hangs in its start",
                   "name the interface of the cluster's network"});
}

}  // namespace

void find_variable_problems(const Topology& t, const Environment& e, Findings& out) {
  auto get = [&](const char* name) -> std::string {
    auto at = e.variables.find(name);
    return at == e.variables.end() ? "" : at->second;
  };
  bool several = t.gpus.size() > 1;
  bool infiniband = std::any_of(t.nics.begin(), t.nics.end(), [](auto& n) { return n.infiniband; });
  bool nvlink = std::any_of(t.links.begin(), t.links.end(), [](auto& l) { return l.kind == LinkKind::nvlink; });
  bool hopper = std::any_of(t.gpus.begin(), t.gpus.end(), [](auto& g) { return g.sm.value_or(0) >= 90; });
  auto add = [&](const char* name, Severity severity, const char* what, const char* impact, const char* remedy = "") {
    std::string set = std::string(name) + "=" + get(name);
    out.push_back({"ENV_" + std::string(name),
                   severity,
                   {},
                   set + " " + what,
                   "set in the environment",
                   impact,
                   *remedy ? remedy : "unset " + std::string(name)});
  };
  if (several && on(get("NCCL_P2P_DISABLE")))
    add("NCCL_P2P_DISABLE", Severity::warning, "turns off copies between GPUs",
        nvlink ? "NVLink stays unused: data takes the way through the host, ten times slower or worse"
               : "data takes the way through the host's memory");
  std::string level = lower(get("NCCL_P2P_LEVEL"));
  if (several && (level == "loc" || level == "0" || (level == "nvl" && !nvlink)))
    add("NCCL_P2P_LEVEL", Severity::warning, "forbids copies between GPUs",
        "data takes the way through the host's memory: A100s went from 220 to a tenth of it");
  if (several && on(get("NCCL_SHM_DISABLE")))
    add("NCCL_SHM_DISABLE", Severity::warning, "turns off shared memory",
        "GPUs without peer access talk through the network of the host");
  if (infiniband && on(get("NCCL_IB_DISABLE")))
    add("NCCL_IB_DISABLE", Severity::warning, "turns off InfiniBand", "nodes talk over TCP: a tenth of the bandwidth");
  if (lower(get("NCCL_NET")) == "socket" && infiniband)
    add("NCCL_NET", Severity::warning, "chooses TCP although there is InfiniBand",
        "a tenth of the bandwidth between nodes");
  std::string gdr = lower(get("NCCL_NET_GDR_LEVEL"));
  if (infiniband && (gdr == "loc" || gdr == "0"))
    add("NCCL_NET_GDR_LEVEL", Severity::warning, "turns off GPUDirect RDMA",
        "data to other nodes is copied through the host's memory");
  if (hopper && t.all_pairs_nvswitch() && off(get("NCCL_NVLS_ENABLE")) && !get("NCCL_NVLS_ENABLE").empty())
    add("NCCL_NVLS_ENABLE", Severity::warning, "turns off the adding switches",
        "large all-reduces reach about 360 instead of 480 GB/s on eight H100 or H200");
  if (on(get("NCCL_IGNORE_DISABLED_P2P")))
    add("NCCL_IGNORE_DISABLED_P2P", Severity::warning, "hides that peer access is off between linked GPUs",
        "NVLink is not used and nothing says so");
  if (on(get("CUDA_LAUNCH_BLOCKING")))
    add("CUDA_LAUNCH_BLOCKING", Severity::warning, "makes every kernel wait",
        "no overlap of communication and compute; collectives of several groups may deadlock");
  for (const char* name : {"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"})
    if (std::string v = get(name);
        several && nvlink && !v.empty() && std::atoi(v.c_str()) > 0 && std::atoi(v.c_str()) < 8)
      add(name, Severity::warning, "limits the channels", "a few channels cannot fill NVLink");
  if (std::string v = get("NCCL_BUFFSIZE"); !v.empty() && std::atoll(v.c_str()) < 1 << 20)
    add("NCCL_BUFFSIZE", Severity::warning, "makes the buffers small", "bandwidth between nodes falls");
  if (!get("NCCL_TOPO_FILE").empty()) {
    if (e.topo_file_exists)
      add("NCCL_TOPO_FILE", Severity::info, "replaces what NCCL would see",
          "a file of another machine hides the truth from NCCL",
          "compare: xylem topo --from that file, and xylem topo");
    else
      add("NCCL_TOPO_FILE", Severity::error, "names a file that cannot be read",
          "NCCL stops or works on a wrong topology");
  }
  if (!get("NCCL_HOSTID").empty())
    add("NCCL_HOSTID", Severity::info, "tells NCCL which processes share a host",
        "processes with different values talk over the network even on one host");
  if (std::string v = get("NCCL_TUNER_PLUGIN"); !v.empty() && v.find("xylem") == std::string::npos)
    add("NCCL_TUNER_PLUGIN", Severity::info, "loads another tuner",
        "that tuner chooses the algorithms, not Xylem's plan");
  if (!get("NCCL_PROTO").empty())
    add("NCCL_PROTO", Severity::info, "overrules the plan", "protocols that it excludes are not available");
  if (!get("NCCL_ALGO").empty()) judge_algo(get("NCCL_ALGO"), out);
  if (e.hosts_of_job > 1 && !e.interfaces.empty()) judge_network(e, out);
  if (!get("NCCL_SOCKET_IFNAME").empty()) judge_interface(e, get("NCCL_SOCKET_IFNAME"), out);
  if (std::string v = lower(get("NCCL_DEBUG")); v == "trace")
    add("NCCL_DEBUG", Severity::info, "writes a line for every call", "the log grows by gigabytes and slows the job");
}

}  // namespace xylem::detail
