// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/findings.h"

#include <algorithm>
#include <cstdio>

#include "distributed/topology/findings_internal.h"

namespace xylem {
namespace detail {

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& p : parts) text += (text.empty() ? "" : between) + p;
  return text;
}

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, v < 10 && v != int(v) ? "%.2g" : "%.0f", v);
  return text;
}

std::vector<std::string> gpu_names(const Topology& t, const std::vector<int>& gpus) {
  std::vector<std::string> names;
  for (int g : gpus) names.push_back(t.device_name(g));
  return names;
}

std::string gpu_list(const Topology& t, const std::vector<int>& gpus) {
  std::string text;
  for (size_t i = 0; i < gpus.size();) {
    size_t j = i;
    auto follows = [&](int a, int b) {
      const GpuDevice &x = t.gpus[size_t(a)], &y = t.gpus[size_t(b)];
      return x.host == y.host && y.index == x.index + 1;
    };
    while (j + 1 < gpus.size() && follows(gpus[j], gpus[j + 1])) ++j;
    text += (text.empty() ? "" : ", ") + t.device_name(gpus[i]);
    if (j == i + 1) text += ", " + t.device_name(gpus[j]);
    if (j > i + 1) text += "-" + std::to_string(t.gpus[size_t(gpus[j])].index);
    i = j + 1;
  }
  return text;
}

}  // namespace detail

using namespace detail;

std::vector<Finding> find_topology_problems(const Topology& t) {
  std::vector<Finding> out;
  find_nvlink_problems(t, out);
  find_peer_problems(t, out);
  find_pcie_problems(t, out);
  find_tree_problems(t, out);
  find_nic_problems(t, out);
  find_gpu_problems(t, out);
  find_host_differences(t, out);
  return out;
}

std::vector<Finding> find_environment_problems(const Topology& t, const Environment& e) {
  std::vector<Finding> out;
  find_limit_problems(t, e, out);
  find_variable_problems(t, e, out);
  return out;
}

std::vector<Finding> find_problems(const Topology& t, const Environment& e) {
  std::vector<Finding> out = find_topology_problems(t), more = find_environment_problems(t, e);
  out.insert(out.end(), more.begin(), more.end());
  sort_findings(out);
  return out;
}

std::vector<Finding> find_rank_problems(const std::vector<int>& ranks_per_host) {
  if (ranks_per_host.empty()) return {};
  auto [least, most] = std::minmax_element(ranks_per_host.begin(), ranks_per_host.end());
  if (*least == *most) return {};
  std::vector<std::string> counts, subjects;
  for (size_t i = 0; i < ranks_per_host.size(); ++i) {
    counts.push_back(std::to_string(ranks_per_host[i]));
    if (ranks_per_host[i] == *least) subjects.push_back("host" + std::to_string(i));
  }
  return {{"RANKS_UNEVEN", Severity::warning, subjects, "the hosts run different numbers of ranks",
           "ranks per host: " + joined(counts),
           "two-level collectives and trees need equal numbers; NCCL falls back to slower ones, and some of its "
           "versions deadlock at the start",
           "start the same number on every host (mpirun --map-by ppr:N:node, srun --ntasks-per-node=N)"}};
}

std::vector<Finding> find_group_problems(const Topology& t, const std::vector<int>& gpus, const std::string& group) {
  std::vector<std::vector<int>> parts;
  for (const std::vector<int>& island : t.islands()) {
    std::vector<int> part;
    for (int g : island)
      if (std::find(gpus.begin(), gpus.end(), g) != gpus.end()) part.push_back(g);
    if (!part.empty()) parts.push_back(part);
  }
  bool any_inside = std::any_of(parts.begin(), parts.end(), [](auto& p) { return p.size() > 1; });
  bool island_holds = std::any_of(parts.begin(), parts.end(), [&](auto&) {
    auto islands = t.islands();
    return std::any_of(islands.begin(), islands.end(),
                       [&](auto& i) { return i.size() >= gpus.size() && i.size() > 1; });
  });
  if (parts.size() < 2 || (!any_inside && !island_holds)) return {};
  std::optional<double> inside, across;
  std::vector<std::string> lists;
  std::string across_path;
  for (const auto& part : parts) lists.push_back("[" + gpu_list(t, part) + "]");
  for (int a : gpus)
    for (int b : gpus) {
      if (a == b) continue;
      const DevicePair& p = t.pair(a, b);
      std::optional<double>& side = p.nvlinks > 0 ? inside : across;
      if (p.nvlinks == 0) across_path = p.str();
      if (p.gbps) side = std::min(side.value_or(*p.gbps), *p.gbps);
    }
  std::string numbers = inside && across ? ": " + number(*across) + " instead of " + number(*inside) + " GB/s" : "";
  return {{"GROUP_SPANS_ISLANDS", Severity::warning, gpu_names(t, gpus),
           "group " + group + " spans " + std::to_string(parts.size()) + " NVLink islands",
           joined(lists, " ") + "; between them " + (across_path.empty() ? "PCIe" : across_path),
           "every collective of the group runs at the speed of the slowest path" + numbers,
           "give the group GPUs of one island (xylem topo prints the best order of ranks), or make it smaller and put "
           "the outer axis of the mesh across islands"}};
}

void sort_findings(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
}

std::string format_findings(const std::vector<Finding>& findings) {
  std::string text;
  auto wrapped = [&](const char* label, const std::string& words) {
    if (words.empty()) return;
    constexpr size_t kWidth = 104;
    std::string line = std::string("      ") + label;
    for (size_t at = 0; at < words.size();) {
      size_t end = std::min(words.find(' ', at), words.size());
      if (line.size() + 1 + (end - at) > kWidth) {
        text += line + "\n";
        line = "             ";
      }
      line += " " + words.substr(at, end - at);
      at = end + 1;
    }
    text += line + "\n";
  };
  for (const Finding& f : findings) {
    text += std::string("  ") + name_of(f.severity) + " " + f.code;
    if (!f.subjects.empty())
      text += " (" +
              (f.subjects.size() > 8 ? std::to_string(f.subjects.size()) + " devices" : detail::joined(f.subjects)) +
              ")";
    text += ": " + f.what + "\n";
    wrapped("seen:  ", f.evidence);
    wrapped("impact:", f.impact);
    wrapped("remedy:", f.remedy);
  }
  return text;
}

}  // namespace xylem
