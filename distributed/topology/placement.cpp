// SPDX-License-Identifier: Apache-2.0
// From the inside out: the GPUs are grouped by the size of the innermost axis so that the slowest pair of a group is as
// fast as it can be, then the groups by the next axis, and so on. Members of a group are ordered as a ring.
#include "distributed/topology/placement.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/util/check.h"
#include "distributed/topology/cpulist.h"
#include "distributed/topology/findings.h"

namespace xylem {
namespace {

// How good a pair is: by class first (NVLink before PCIe before the network), then by bandwidth or number of links.
double score(const Topology& t, int a, int b) {
  const DevicePair& p = t.pair(a, b);
  double value = 0;
  switch (p.path) {
    case PathClass::self:
      return 1e9;
    case PathClass::nvlink:
    case PathClass::nvswitch:
      value = 1000 + 10.0 * std::min(p.nvlinks, t.pair(b, a).nvlinks);
      break;
    case PathClass::pix:
      value = 600;
      break;
    case PathClass::pxb:
      value = 500;
      break;
    case PathClass::phb:
      value = 400;
      break;
    case PathClass::node:
      value = 300;
      break;
    case PathClass::sys:
      value = 200;
      break;
    case PathClass::unknown:
      value = 150;
      break;
    case PathClass::net:
      value = 100;
      break;
  }
  // Without a better word, one NUMA node is nearer than two.
  auto x = t.gpus[size_t(a)].numa, y = t.gpus[size_t(b)].numa;
  if (x && y && *x == *y && t.gpus[size_t(a)].host == t.gpus[size_t(b)].host) value += 5;
  return value;
}

using Block = std::vector<int>;  // GPUs in rank order

// Between blocks the slowest pair counts, then the sum over all of them.
double block_score(const Topology& t, const Block& a, const Block& b) {
  double least = 1e9, sum = 0;
  for (int x : a)
    for (int y : b) {
      double s = score(t, x, y);
      least = std::min(least, s);
      sum += s;
    }
  return least + 1e-4 * sum / double(a.size() * b.size());
}

class Grouper {
 public:
  Grouper(const Topology& t, const std::vector<Block>& blocks) : n_(blocks.size()), w_(n_ * n_) {
    for (size_t i = 0; i < n_; ++i)
      for (size_t j = 0; j < n_; ++j) w_[i * n_ + j] = i == j ? 0 : block_score(t, blocks[i], blocks[j]);
  }

  // Partitions the blocks into groups of `size`: the best found within a bounded search.
  std::vector<std::vector<int>> partition(size_t size) {
    size_ = size;
    used_.assign(n_, false);
    current_.clear();
    best_value_ = {-1, -1};
    steps_ = 0;
    search({1e18, 0});
    return best_;
  }

  // The order in which the ring over `members` has the fastest slowest hop; begins with the first.
  std::vector<int> ring(std::vector<int> members) const {
    if (members.size() <= 3) return members;
    std::vector<int> best = members;
    if (members.size() <= 8) {
      std::vector<int> order = members;
      std::sort(order.begin() + 1, order.end());
      auto value = [&](const std::vector<int>& o) {
        double least = 1e18, sum = 0;
        for (size_t i = 0; i < o.size(); ++i) {
          double w = at(o[i], o[(i + 1) % o.size()]);
          least = std::min(least, w);
          sum += w;
        }
        return std::pair(least, sum);
      };
      auto top = value(order);
      best = order;
      while (std::next_permutation(order.begin() + 1, order.end()))
        if (auto v = value(order);
            v.first > top.first + 1e-9 || (v.first > top.first - 1e-9 && v.second > top.second + 1e-6)) {
          top = v;
          best = order;
        }
      return best;
    }
    for (size_t i = 1; i < best.size(); ++i) {  // nearest next
      auto next = std::max_element(best.begin() + long(i), best.end(),
                                   [&](int a, int b) { return at(best[i - 1], a) < at(best[i - 1], b); });
      std::rotate(best.begin() + long(i), next, next + 1);
    }
    return best;
  }

 private:
  using Value = std::pair<double, double>;  // slowest pair of all groups, sum over the pairs
  double at(int i, int j) const { return w_[size_t(i) * n_ + size_t(j)]; }

  void search(Value so_far) {
    if (++steps_ > kMostSteps && best_value_.first >= 0) return;
    if (so_far.first < best_value_.first) return;
    size_t first = 0;
    while (first < n_ && used_[first]) ++first;
    if (first == n_) {
      if (so_far.first > best_value_.first + 1e-9 || so_far.second > best_value_.second + 1e-9) {
        best_value_ = so_far;
        best_ = current_;
      }
      return;
    }
    used_[first] = true;
    current_.push_back({int(first)});
    extend(so_far);
    current_.pop_back();
    used_[first] = false;
  }

  void extend(Value so_far) {
    size_t mine = current_.size() - 1;  // no reference: the search below may move the groups
    if (current_[mine].size() == size_) return search(so_far);
    // Near ones first, so that the first partition found is a good one.
    std::vector<size_t> candidates;
    for (size_t i = 0; i < n_; ++i)
      if (!used_[i]) candidates.push_back(i);
    int leader = current_[mine][0];
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](size_t a, size_t b) { return at(leader, int(a)) > at(leader, int(b)); });
    for (size_t i : candidates) {
      if (steps_ > kMostSteps && best_value_.first >= 0) return;
      Value value = so_far;
      for (int member : current_[mine]) {
        value.first = std::min(value.first, at(member, int(i)));
        value.second += at(member, int(i));
      }
      if (value.first < best_value_.first) continue;
      used_[i] = true;
      current_[mine].push_back(int(i));
      extend(value);
      current_[mine].pop_back();
      used_[i] = false;
    }
  }

  static constexpr int64_t kMostSteps = 20000;
  size_t n_, size_ = 1;
  std::vector<double> w_;
  std::vector<bool> used_;
  std::vector<std::vector<int>> current_, best_;
  Value best_value_{-1, -1};
  int64_t steps_ = 0;
};

std::vector<Block> group_blocks(const Topology& t, const std::vector<Block>& blocks, size_t size) {
  Grouper grouper(t, blocks);
  std::vector<Block> groups;
  std::vector<std::vector<int>> parts;
  if (size == blocks.size()) {
    parts.emplace_back(blocks.size());
    std::iota(parts[0].begin(), parts[0].end(), 0);
  } else {
    parts = grouper.partition(size);
  }
  for (const std::vector<int>& part : parts) {
    Block merged;
    for (int b : grouper.ring(part)) merged.insert(merged.end(), blocks[size_t(b)].begin(), blocks[size_t(b)].end());
    groups.push_back(merged);
  }
  return groups;
}

// The nearest NIC that is up, of equal ones the least used; a NIC that is down where there is no other.
void assign_nearest(const Topology& t, std::vector<RankPlace>& ranks, std::map<int, int>& load) {
  for (RankPlace& r : ranks) {
    std::optional<int> best;
    auto key = [&](int nic) {
      return std::tuple(!t.nics[size_t(nic)].up, int(t.nic_pair(r.gpu, nic).path), load[nic], nic);
    };
    for (int n = 0; n < int(t.nics.size()); ++n)
      if (t.nics[size_t(n)].host == t.gpus[size_t(r.gpu)].host && (!best || key(n) < key(*best))) best = n;
    // Where no distance is known, a NIC that is the only one is the nearest, and of several none is.
    auto here = std::count_if(t.nics.begin(), t.nics.end(),
                              [&](const NicDevice& n) { return n.host == t.gpus[size_t(r.gpu)].host; });
    if (best && here > 1 && t.nic_pair(r.gpu, *best).path == PathClass::unknown) best.reset();
    if (best) ++load[*best];
    r.nic = best;
  }
}

// Ranks that share a NIC while one below the same switch idles: it is as good, though a bridge further away.
void spread_nics(const Topology& t, std::vector<RankPlace>& ranks, std::map<int, int>& load) {
  for (RankPlace& r : ranks)
    for (int n = 0; r.nic && load[*r.nic] > 1 && n < int(t.nics.size()); ++n) {
      const NicDevice& nic = t.nics[size_t(n)];
      const PathClass path = t.nic_pair(r.gpu, n).path;
      const bool below_one_switch = path == PathClass::pix || path == PathClass::pxb;
      const bool idle = load[n] == 0 && nic.up && nic.host == t.gpus[size_t(r.gpu)].host;
      if (!idle || !below_one_switch || !nic.as_good_as(t.nics[size_t(*r.nic)])) continue;
      --load[*r.nic];
      ++load[n];
      r.nic = n;
    }
}

void assign_nics(const Topology& t, RankPlacement& placement) {
  std::map<int, int> load;
  assign_nearest(t, placement.ranks, load);
  spread_nics(t, placement.ranks, load);
  std::vector<std::string> far;
  for (size_t r = 0; r < placement.ranks.size(); ++r) {
    const RankPlace& p = placement.ranks[r];
    if (p.nic && t.nic_is_far(p.gpu, *p.nic)) far.push_back("rank " + std::to_string(r));
  }
  const bool some_near = std::any_of(placement.ranks.begin(), placement.ranks.end(),
                                     [&](const RankPlace& p) { return p.nic && !t.nic_is_far(p.gpu, *p.nic); });
  if (far.empty() || !some_near) return;
  placement.findings.push_back({"RANK_NIC_FAR", Severity::warning, far,
                                std::to_string(far.size()) + " of " + std::to_string(placement.ranks.size()) +
                                    " ranks use a NIC beyond the link between the sockets",
                                "their GPUs have no NIC on their side", "between hosts they are the slowest",
                                "run on the GPUs near NICs alone, or let one rank near a NIC send for them (PXN)"});
}

// Ranks whose GPUs are near the same CPUs share them in equal runs of cores.
void assign_cpus(const Topology& t, const std::string& allowed, std::vector<RankPlace>& ranks) {
  std::map<std::pair<int, std::string>, std::vector<RankPlace*>> sharers;
  for (RankPlace& r : ranks) {
    const GpuDevice& g = t.gpus[size_t(r.gpu)];
    r.numa = g.numa;
    std::string cpus = g.cpus;
    for (const NumaNode& node : t.numa)
      if (cpus.empty() && node.host == g.host && g.numa == node.id) cpus = node.cpus;
    if (!allowed.empty()) cpus = common_cpus(cpus, allowed);
    if (!cpus.empty()) sharers[{g.host, cpus}].push_back(&r);
  }
  for (auto& [key, list] : sharers) {
    std::vector<int> cpus = *parse_cpulist(key.second);
    size_t n = list.size();
    // "0-31,64-95" are cores and their second threads: each run is divided, so that a core stays whole.
    std::vector<std::vector<int>> runs;
    for (int c : cpus) {
      if (runs.empty() || c != runs.back().back() + 1) runs.emplace_back();
      runs.back().push_back(c);
    }
    bool divisible = std::all_of(runs.begin(), runs.end(), [&](auto& r) { return r.size() >= n; });
    if (!divisible) runs = {cpus};
    if (cpus.size() < n) {
      for (RankPlace* r : list) r->cpus = key.second;
      continue;
    }
    for (size_t i = 0; i < n; ++i) {
      std::vector<int> mine;
      for (const auto& run : runs)
        mine.insert(mine.end(), run.begin() + long(run.size() * i / n), run.begin() + long(run.size() * (i + 1) / n));
      list[i]->cpus = format_cpulist(mine);
    }
  }
}

}  // namespace

RankPlacement place_ranks(const Topology& t, const PlacementOptions& options) {
  int gpus = int(t.gpus.size());
  auto axes = options.axes;
  if (axes.empty()) axes = {{"world", std::max(1, gpus)}};
  int64_t ranks = 1;
  for (auto& [name, size] : axes) {
    XY_CHECK(size >= 1, "axis ", name, " has size ", size);
    ranks *= size;
  }
  RankPlacement placement;
  if (gpus == 0) return placement;
  XY_CHECK(ranks <= gpus, "a mesh of ", ranks, " ranks needs as many GPUs; this topology has ", gpus);
  // GPUs left over are the last ones of the last hosts; islands stay whole where they can.
  std::vector<Block> blocks;
  for (const auto& island : t.islands())
    for (int g : island) blocks.push_back({g});
  if (ranks < gpus) {
    // The best connected subset: the largest islands first.
    auto islands = t.islands();
    std::stable_sort(islands.begin(), islands.end(), [](auto& a, auto& b) { return a.size() > b.size(); });
    blocks.clear();
    for (const auto& island : islands)
      for (int g : island)
        if (int64_t(blocks.size()) < ranks) blocks.push_back({g});
    std::sort(blocks.begin(), blocks.end());
  }
  for (size_t a = axes.size(); a-- > 0;)
    if (axes[a].second > 1) blocks = group_blocks(t, blocks, size_t(axes[a].second));
  std::vector<int> order = blocks[0];
  for (int g : order) placement.ranks.push_back({.gpu = g, .numa = {}, .cpus = "", .nic = {}});
  assign_cpus(t, options.allowed_cpus, placement.ranks);
  assign_nics(t, placement);
  // What each axis got: its groups are the ranks that differ in this axis alone.
  int stride = 1;
  for (size_t a = axes.size(); a-- > 0;) {
    auto [name, size] = axes[a];
    AxisReport report{.name = name, .size = size, .inside_islands = size > 1, .worst = PathClass::self, .gbps = {}};
    bool all_known = true;
    for (int r = 0; r < int(ranks); ++r) {
      if (r / stride % size != 0) continue;
      std::vector<int> group;
      for (int k = 0; k < size; ++k) group.push_back(order[size_t(r) + size_t(k) * size_t(stride)]);
      for (size_t i = 0; i < group.size(); ++i)
        for (size_t j = 0; j < group.size(); ++j) {
          if (i == j) continue;
          const DevicePair& p = t.pair(group[i], group[j]);
          report.worst = std::max(report.worst, p.path);
          all_known &= p.gbps.has_value();
          if (p.gbps) report.gbps = std::min(report.gbps.value_or(*p.gbps), *p.gbps);
        }
      auto findings = find_group_problems(t, group, name + " of rank " + std::to_string(r));
      auto islands = t.islands();
      bool inside = std::any_of(islands.begin(), islands.end(), [&](auto& island) {
        return std::all_of(group.begin(), group.end(),
                           [&](int g) { return std::find(island.begin(), island.end(), g) != island.end(); });
      });
      report.inside_islands &= inside;
      if (a + 1 == axes.size() && axes.size() > 1)
        placement.findings.insert(placement.findings.end(), findings.begin(), findings.end());
    }
    if (!all_known) report.gbps.reset();
    placement.axes.insert(placement.axes.begin(), report);
    stride *= size;
  }
  return placement;
}

std::string RankPlacement::text(const Topology& t) const {
  std::string out;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankPlace& p = ranks[r];
    out += "  rank " + std::to_string(r) + ": " + t.device_name(p.gpu);
    if (p.numa) out += ", NUMA " + std::to_string(*p.numa);
    if (!p.cpus.empty()) out += ", CPUs " + p.cpus;
    if (p.nic) out += ", " + t.device_name(int(t.gpus.size()) + *p.nic);
    if (p.nic && t.nic_is_far(p.gpu, *p.nic)) out += " (far: SYS)";
    out += "\n";
  }
  return out;
}

}  // namespace xylem
