// SPDX-License-Identifier: Apache-2.0
// NICs: GPUs that have none near, NICs that several GPUs share while others idle, and devices that a file leaves
// unnamed.
#include <algorithm>
#include <map>
#include <set>

#include "distributed/topology/findings_internal.h"
#include "distributed/topology/gpu_model.h"

namespace xylem::detail {
namespace {

std::string nic_list(const Topology& t, const std::vector<int>& nics) {
  std::vector<std::string> names;
  for (int n : nics) names.push_back(t.device_name(int(t.gpus.size()) + n));
  return joined(names);
}

std::vector<int> gpus_of(const Topology& t, int host) {
  std::vector<int> gpus;
  for (int g = 0; g < int(t.gpus.size()); ++g)
    if (t.gpus[size_t(g)].host == host) gpus.push_back(g);
  return gpus;
}

// GPUs whose every NIC is behind the link between sockets, on a host where others have one on their side.
void find_far(const Topology& t, int host, Findings& out) {
  std::vector<int> near, far;
  for (int g : gpus_of(t, host))
    if (const std::vector<int> nics = t.nearest_nics(g); !nics.empty()) {
      const bool all_far = std::all_of(nics.begin(), nics.end(), [&](int n) { return t.nic_is_far(g, n); });
      (all_far ? far : near).push_back(g);
    }
  if (near.empty() || far.empty()) return;
  const bool through_peers = std::all_of(far.begin(), far.end(), [&](int f) {
    return std::any_of(near.begin(), near.end(), [&](int n) { return t.pair(f, n).nvlinks > 0; });
  });
  // One NIC is near one socket alone, and to cards that go through the host's memory anyway it is much the same.
  const auto nics = std::count_if(t.nics.begin(), t.nics.end(), [&](auto& n) { return n.host == host && n.up; });
  const GpuModel* model = find_gpu_model(t.gpus[size_t(far[0])].name);
  const bool matters = !through_peers && nics > 1 && (!model || model->data_centre);
  std::set<std::string> nodes;
  for (int f : far)
    if (auto numa = t.gpus[size_t(f)].numa) nodes.insert(std::to_string(*numa));
  auto have = [](const std::vector<int>& gpus) { return gpus.size() == 1 ? " has" : " have"; };
  out.push_back(
      {"NIC_FAR", matters ? Severity::warning : Severity::info, gpu_names(t, far),
       gpu_list(t, far) + have(far) + " no NIC of their own: every NIC is beyond the link between the sockets",
       (nodes.empty() ? "" : "NUMA node " + joined({nodes.begin(), nodes.end()}) + " has no NIC; ") +
           gpu_list(t, near) + have(near) + " one near",
       through_peers
           ? "NCCL sends their traffic through the GPUs with a NIC, over NVLink (PXN); what does not go through "
             "NCCL crosses the sockets"
           : "between hosts their traffic crosses the link between the sockets, as a rule without GPUDirect, "
             "and every rank waits for the slowest",
       "give jobs of several hosts the GPUs near NICs (CUDA_VISIBLE_DEVICES), or move a NIC to the other socket"});
}

void find_contended(const Topology& t, int host, Findings& out) {
  std::map<std::vector<int>, std::vector<int>> sharers;  // nearest NICs -> GPUs
  std::set<int> wanted;
  for (int g : gpus_of(t, host)) {
    const std::vector<int> nearest = t.nearest_nics(g);
    if (nearest.empty()) continue;
    sharers[nearest].push_back(g);
    wanted.insert(nearest.begin(), nearest.end());
  }
  for (const auto& [nearest, group] : sharers) {
    if (group.size() <= nearest.size()) continue;
    std::vector<int> idle;
    for (int n = 0; n < int(t.nics.size()); ++n) {
      const PathClass path = t.nic_pair(group[0], n).path;
      if (t.nics[size_t(n)].up && !wanted.count(n) && (path == PathClass::pix || path == PathClass::pxb) &&
          t.nics[size_t(n)].as_good_as(t.nics[size_t(nearest[0])]))
        idle.push_back(n);
    }
    if (idle.empty()) continue;
    out.push_back({"NIC_SHARED", Severity::warning, gpu_names(t, group),
                   gpu_list(t, group) + " have " + nic_list(t, nearest) + " as their nearest, while " +
                       nic_list(t, idle) + " is nobody's",
                   "for " + t.device_name(group[0]) + " " + nic_list(t, nearest) + " is " +
                       t.nic_pair(group[0], nearest[0]).str() + " and " + nic_list(t, idle) + " " +
                       t.nic_pair(group[0], idle[0]).str() +
                       ", below one switch: its virtual bridges may tell less than "
                       "the hardware has",
                   "NCCL gives the ranks the same NIC and leaves the other idle: half the bandwidth between hosts",
                   "the ranks of xylem topo are spread over both; for NCCL correct the tree (NCCL_TOPO_FILE), or give "
                   "each process its NIC (NCCL_IB_HCA)"});
  }
}

}  // namespace

void find_nic_problems(const Topology& t, Findings& out) {
  for (int host = 0; host < int(t.hosts.size()); ++host) {
    find_far(t, host, out);
    find_contended(t, host, out);
  }
  if (t.unknown.empty()) return;
  std::vector<std::string> addresses;
  for (const UnknownDevice& d : t.unknown) addresses.push_back(d.pci.str());
  out.push_back({"FILE_PARTIAL", Severity::warning, addresses,
                 "the file gives " + std::to_string(addresses.size()) +
                     " devices by their address alone: which are GPUs and which NICs is not told",
                 "<pci busid=...> without a class: NCCL looks the rest up on the machine",
                 "they are missing from the matrix, the plan and the other findings",
                 "run xylem topo --from FILE on that machine, which completes it from what it detects, or write "
                 "class=\"0x030200\" to the GPUs and class=\"0x020700\" to the NICs"});
}

}  // namespace xylem::detail
