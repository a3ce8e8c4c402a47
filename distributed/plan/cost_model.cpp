// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/util/check.h"

namespace xylem {
namespace {

// Constants of NCCL 2.28's model (its src/graph/tuning.cc). Latencies in us, bandwidths in GB/s; by protocol LL, LL128,
// Simple, or by number of nodes 1, 2, 3 and more, or by GPU generation Volta, Ampere, Hopper, Blackwell.
using ByProtocol = double[3];
using ByNodes = double[3];

constexpr ByProtocol kTreeBase = {6.8, 14, 8.4}, kRingBase = {6.6, 14, 8.4};
constexpr ByProtocol kTreeNvlink = {0.6, 1.25, 4}, kRingNvlink = {0.6, 1.9, 3.4};
constexpr ByProtocol kTreePci = {1, 1.9, 4}, kRingPci = {1, 2.5, 5.7};
constexpr ByProtocol kTreeNet = {5, 8.5, 14}, kRingNet = {2.7, 4, 14};
constexpr double kNvlsNvlink = 25, kNvlsNet = 18, kNvlsTreeNet = 20.9;
constexpr double kPatBase = 8, kPatNet = 14, kPatPerRank = 2.8, kPatOverlap = 3.5;

constexpr ByNodes kLowLatencyMax[] = {{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}};
constexpr ByNodes kRingLl128[] = {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 36.7}, {73.4, 34.6, 73.4}};
constexpr ByNodes kTreeLl128[] = {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}};
constexpr ByNodes kTreeSimple[] = {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}};
constexpr ByNodes kNvlsTree[] = {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 43.8}};
constexpr double kNvlsEfficiency[] = {0, 0, 0.85, 0.74};
// Ours: the share of a GPU's links that NVLS fills, fitted to measurements on 4 to 8 GPUs.
constexpr double kNvlsLinkShare[] = {0, 0, 0.83, 0.74};

// Ours, of messages between processes, with the waiting for each other: rough figures that put the change from tree to
// ring near 64 KiB; `xylem bench collectives --save` replaces them.
constexpr double kHostMessage = 15, kHostCopy = 4, kNetMessage = 40, kNetCopy = 1.2;

// A tree's share of its bandwidth at 64 B, 128 B, ... 256 MiB.
constexpr double kTreeShare[3][23] = {
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9}};

constexpr size_t index_of(CollectiveKind k, Algorithm a, Protocol p) {
  return (size_t(k) * 7 + size_t(a)) * 3 + size_t(p);
}
bool gathers(CollectiveKind k) { return k == CollectiveKind::all_gather || k == CollectiveKind::reduce_scatter; }
int log2_floor(int n) { return int(std::floor(std::log2(n))); }

}  // namespace

GpuGeneration generation_of(int sm) {
  return sm >= 100  ? GpuGeneration::blackwell
         : sm >= 90 ? GpuGeneration::hopper
         : sm >= 80 ? GpuGeneration::ampere
                    : GpuGeneration::volta;
}

double Cost::latency_us() const {
  double us = base_us;
  for (const Part& p : parts) us += p.count * p.us;
  return us;
}

std::string Cost::str() const {
  char text[96];
  std::string all;
  if (base_us > 0) {
    std::snprintf(text, sizeof text, "%.3g us", base_us);
    all = text;
  }
  for (const Part& p : parts) {
    if (p.count == 0) continue;
    std::string what = p.what, plus = all.empty() ? "" : " + ";
    if (p.count == 1 && what.back() == 's') what.pop_back();
    std::snprintf(text, sizeof text, "%s%g %s x %.3g us", plus.c_str(), p.count, what.c_str(), p.us);
    all += text;
  }
  std::snprintf(text, sizeof text, ", %.4g GB/s", gbps);
  return all + text;
}

CostModel::CostModel(Fabric fabric, bool nccl_exact) : fabric_(std::move(fabric)), nccl_exact_(nccl_exact) {
  for (int k = 0; k < 5; ++k)
    for (int a = 0; a < 7; ++a)
      for (int p = 0; p < 3; ++p) {
        auto kind = CollectiveKind(k);
        auto algorithm = Algorithm(a);
        auto protocol = Protocol(p);
        costs_[index_of(kind, algorithm, protocol)] = make(kind, algorithm, protocol);
      }
}

const Cost& CostModel::cost(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const {
  return costs_[index_of(kind, algorithm, protocol)];
}

Cost CostModel::make(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const {
  Cost cost;
  if (fabric_.ranks < 2 || !fabric_.unknown.empty()) return cost;
  if (fabric_.cpu) return host_cost(kind, algorithm, protocol);
  cost.gbps = bandwidth(kind, algorithm, protocol);
  if (cost.gbps > 0) set_latency(cost, kind, algorithm, protocol);
  return cost;
}

// Messages between processes: each step costs a latency, and a rank sends and receives at once. A ring passes n-th
// parts around; a tree passes everything along its edges.
Cost CostModel::host_cost(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const {
  if (protocol != Protocol::simple) return {};
  const double n = fabric_.ranks, us = fabric_.nodes > 1 ? kNetMessage : kHostMessage;
  const double gbps = fabric_.nodes > 1 ? kNetCopy : kHostCopy, depth = std::ceil(std::log2(n));
  Cost cost;
  auto set = [&](double steps, double share) {
    cost.parts = {{steps, us, "steps"}};
    cost.gbps = gbps / (steps * share);
  };
  const bool sums = kind == CollectiveKind::all_reduce, spreads = !sums && !gathers(kind);
  if (algorithm == Algorithm::ring) set(sums || spreads ? 2 * (n - 1) : n - 1, 1 / n);
  if (algorithm == Algorithm::tree && (sums || spreads)) set(sums ? 2 * depth : depth, 1);
  return cost;
}

// The share of the bytes that a link carries decides the bandwidth of an algorithm: a ring passes `steps` parts of
// 1/n each, a tree carries everything up and down.
double CostModel::bandwidth(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const {
  const int n = fabric_.ranks, nodes = fabric_.nodes, column = std::min(nodes, 3) - 1;
  const int generation = int(fabric_.generation);
  const bool sums = kind == CollectiveKind::all_reduce, simple = protocol == Protocol::simple;
  if (protocol == Protocol::ll128 && !fabric_.ll128) return 0;
  // Across nodes NCCL takes the row of Volta, or Ampere's with an AMD CPU, whatever the GPU.
  const int ll_row = nodes == 1 ? generation : fabric_.amd_cpu ? 1 : 0;
  auto bus_of = [&](const Channels& c) {
    return (nccl_exact_ ? 1 : c.share) * c.count * (nodes <= 2 ? c.intra_gbps : c.inter_gbps);
  };

  switch (algorithm) {
    case Algorithm::ring: {
      const Channels& c = fabric_.ring;
      double bus = bus_of(c), steps = sums ? 2.0 * (n - 1) : gathers(kind) ? n - 1 : n;
      if (protocol == Protocol::ll) bus = std::min(kLowLatencyMax[ll_row][column], bus / 2);
      if (protocol == Protocol::ll128) bus = std::min(0.92 * bus, c.count * kRingLl128[generation][column]);
      return bus * n / steps;
    }
    case Algorithm::tree: {
      if (!sums) return 0;
      const Channels& c = fabric_.tree;
      double bus = std::min(0.92 * bus_of(c), c.count * kTreeSimple[generation][column]);
      if (protocol == Protocol::ll) bus = std::min(bus / 3.8, kLowLatencyMax[ll_row][column]);
      if (protocol == Protocol::ll128)
        bus = std::min(bus * (nodes == 1 ? 7.0 / 9 : 120.0 / 128), c.count * kTreeLl128[generation][column]);
      return bus / 2;
    }
    case Algorithm::nvls:
      if (!simple || nodes > 1 || !(sums || gathers(kind))) return 0;
      return nvls_bus(kind, algorithm) * (sums ? n / (2.0 * (n - 1)) : 1);
    case Algorithm::nvls_tree:
      if (!simple || nodes == 1 || !sums) return 0;
      return nvls_bus(kind, algorithm) * n / (2.0 * (n - 1));
    case Algorithm::pat:
      return simple && gathers(kind) && nodes == n ? 0.75 * bus_of(fabric_.tree) : 0;
    default:
      return 0;  // CollNet needs a reducing network and is off unless asked for
  }
}

double CostModel::nvls_bus(CollectiveKind kind, Algorithm algorithm) const {
  const Channels& c = fabric_.nvls;
  const int generation = int(fabric_.generation), n = fabric_.ranks, per_node = fabric_.ranks_per_node();
  if (c.count < 2) return 0;
  const bool sums = kind == CollectiveKind::all_reduce;
  // Every GPU sends its bytes to the switches once and its part of the sum once more: 1 + 1/n of them over its links.
  if (sums && algorithm == Algorithm::nvls && !nccl_exact_)
    return kNvlsLinkShare[generation] * fabric_.nvswitch_gbps * 2 * (n - 1) / (n + 1);
  double intra = c.intra_gbps * kNvlsEfficiency[generation] * (c.count - 1) / c.count;
  intra *= sums ? 2 : double(per_node - 1) / per_node;
  double inter = c.inter_gbps;
  if (algorithm == Algorithm::nvls_tree) {
    if (fabric_.nodes <= 2) inter *= 2;
    // NCCL's limit for two Hopper nodes is what 1 GiB reaches with its start; ours counts the start apart, and the
    // switches' own 59.5 GB/s a channel meet 1 to 9.7 GiB on 2 x 8 H200 within 3 %.
    const bool limited = nccl_exact_ || fabric_.nodes > 2 || fabric_.generation != GpuGeneration::hopper;
    if (limited) inter = std::min(inter, kNvlsTree[generation][std::min(fabric_.nodes, 3) - 1]);
  }
  return c.count * std::min(intra, inter);
}

void CostModel::set_latency(Cost& cost, CollectiveKind kind, Algorithm algorithm, Protocol protocol) const {
  const int n = fabric_.ranks, nodes = fabric_.nodes, per_node = fabric_.ranks_per_node(), p = int(protocol);
  const bool simple = protocol == Protocol::simple, sums = kind == CollectiveKind::all_reduce;
  const double nic = fabric_.nic_latency_us * (simple ? 2 : 1), depth = log2_floor(nodes);
  const double tree_net = kTreeNet[p] + nic;
  auto net = [&](double us) { return per_node == 1 ? tree_net : us + nic; };

  switch (algorithm) {
    case Algorithm::ring: {
      cost.base_us = kRingBase[p];
      double intra = (fabric_.ring.nvlink ? kRingNvlink : kRingPci)[p], inter = net(kRingNet[p]);
      if (kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce) {
        const bool tree_row = simple && !fabric_.ring.same_order;
        double hop = nodes > 1  ? (tree_row ? kTreeNet : kRingNet)[p]
                     : tree_row ? (fabric_.ring.nvlink ? kTreeNvlink : kTreePci)[p]
                                : intra;
        cost.parts = {{fabric_.ring.same_order ? 1.0 : double(n), hop, "steps"}};
        break;
      }
      double steps = (sums ? 2.0 : 1.0) * (n - 1), crossings = (sums ? 2.0 : 1.0) * (nodes - 1);
      // Between nodes a step waits for the host that drives the network.
      if (nodes > 1) intra = std::max(intra, (fabric_.amd_cpu ? 2.0 : 1.0) * (simple ? 3 : 1));
      cost.parts = {{steps - crossings, intra, "steps"}, {crossings, inter, "network steps"}};
      break;
    }
    case Algorithm::tree:
      cost.base_us = kTreeBase[p];
      cost.parts = {{2.0 * (per_node - 1), (fabric_.tree.nvlink ? kTreeNvlink : kTreePci)[p], "steps"},
                    {2.0 * depth, tree_net, "network steps"}};
      break;
    case Algorithm::nvls:
      cost.parts = {{1, kNvlsNvlink, "switch steps"}};
      if (nodes > 1) cost.parts.push_back({1, net(kNvlsNet), "network step"});
      break;
    case Algorithm::nvls_tree:
      cost.parts = {{1, kNvlsNvlink, "switch steps"}, {2 * depth, net(kNvlsTreeNet), "network steps"}};
      break;
    case Algorithm::pat:
      cost.base_us = kPatBase;
      cost.parts = {{depth, net(kPatNet) / kPatOverlap, "network steps"}, {double(n), kPatPerRank, "ranks"}};
      break;
    default:
      break;
  }
}

std::optional<double> CostModel::time_us(CollectiveKind kind, Algorithm algorithm, Protocol protocol,
                                         double bytes) const {
  const Cost& c = cost(kind, algorithm, protocol);
  if (c.gbps <= 0) return std::nullopt;
  double latency = c.latency_us(), gbps = c.gbps;
  if (fabric_.cpu) return latency + bytes / (1000 * gbps);
  if (kind == CollectiveKind::all_reduce && algorithm == Algorithm::tree && bytes >= 64) {
    int step = int(std::floor(std::log2(bytes / 64)));
    if (step < 23) gbps *= kTreeShare[int(protocol)][step];
  }
  // NCCL runs twice the searched channels.
  if (kind == CollectiveKind::all_reduce && algorithm == Algorithm::ring && protocol == Protocol::simple &&
      fabric_.nodes > 1 && bytes / (2.0 * fabric_.ring.count * fabric_.ranks) >= 64)
    latency *= fabric_.generation == GpuGeneration::volta ? 1.9 : 1.4;
  return latency + bytes / (1000 * gbps);
}

std::vector<CostModel::Choice> CostModel::ranked(CollectiveKind kind, double bytes) const {
  std::vector<Choice> all;
  for (int a = 0; a < 7; ++a)
    for (int p = 0; p < 3; ++p)
      if (auto us = time_us(kind, Algorithm(a), Protocol(p), bytes)) all.push_back({Algorithm(a), Protocol(p), *us});
  std::stable_sort(all.begin(), all.end(), [](const Choice& x, const Choice& y) { return x.time_us < y.time_us; });
  return all;
}

}  // namespace xylem
