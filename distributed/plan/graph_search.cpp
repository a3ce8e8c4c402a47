// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan/graph_search.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/util/check.h"
#include "distributed/plan/ring_search.h"
#include "distributed/topology/gpu_model.h"

namespace xylem {
namespace {

// The steps NCCL tries for the bandwidth of a channel, inside and between nodes, in GB/s.
const std::vector<double> kIntraAmpere = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
const std::vector<double> kIntraHopper = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
const std::vector<double> kIntraBlackwell = {90, 80, 70, 60, 50, 40, 45, 30, 24, 20, 15, 12, 6, 3};
const std::vector<double> kInterAmpere = {48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, .24, .12};
const std::vector<double> kInterHopper = {48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, .24, .12};
constexpr int kMostChannels = 32;
constexpr double kSlack = 1e-6;

const std::vector<double>& intra_ladder(int sm) {
  return sm >= 100 ? kIntraBlackwell : sm >= 90 ? kIntraHopper : kIntraAmpere;
}
const std::vector<double>& inter_ladder(int sm) { return sm >= 90 ? kInterHopper : kInterAmpere; }

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", v);
  return text;
}

// Between two sockets, by the CPU; 0: unknown.
double socket_gbps(const HostInfo& host) {
  if (host.cpu_vendor.find("AMD") != std::string::npos) return 16;
  if (host.cpu_vendor.find("ARM") != std::string::npos) return 6;
  if (host.cpu_vendor.find("Intel") == std::string::npos || !host.cpu_model_number) return 0;
  int model = *host.cpu_model_number;
  return model >= 0xCF ? 40 : model >= 0x8F ? 22 : model >= 0x55 ? 10 : 6;
}

bool over_nvlink(PathClass p) { return p == PathClass::nvlink || p == PathClass::nvswitch; }
bool through_cpu(PathClass p) { return p == PathClass::phb || p == PathClass::node || p == PathClass::sys; }

class Builder {
 public:
  Builder(const Topology& topology, const PlanOptions& options) : t_(topology), o_(options) {}

  Fabric build() {
    if (!choose_gpus()) return f_;
    find_generation();
    if (o_.shared_gpu) {
      share_one_gpu();
      return f_;
    }
    split_into_nodes();
    if (!f_.unknown.empty()) return f_;
    for (const auto& node : nodes_) {
      Channels c = rings_of(node);
      if (!f_.unknown.empty()) return f_;
      if (f_.ring.count == 0 || c.count * c.intra_gbps < f_.ring.count * f_.ring.intra_gbps) f_.ring = std::move(c);
    }
    add_nvls();
    f_.ll128 = f_.ring.nvlink;
    if (f_.nodes > 1) join_nodes();
    f_.tree = f_.ring;
    return f_;
  }

 private:
  void assume(const std::string& what) {
    if (std::find(f_.assumptions.begin(), f_.assumptions.end(), what) == f_.assumptions.end())
      f_.assumptions.push_back(what);
  }
  const DevicePair& pair(int a, int b) const { return t_.pairs[size_t(a)][size_t(b)]; }
  const GpuDevice& gpu(int g) const { return t_.gpus[size_t(g)]; }
  const HostInfo* host(int h) const { return size_t(h) < t_.hosts.size() ? &t_.hosts[size_t(h)] : nullptr; }
  static bool names(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

  bool choose_gpus() {
    const int all = int(t_.gpus.size());
    f_.ranks = o_.ranks > 0 ? o_.ranks : all;
    if (all == 0 || o_.cpu) {
      f_.cpu = true;
      f_.ranks = std::max(1, o_.ranks);
      f_.nodes = std::max(1, int(t_.hosts.size()));
      f_.ring.limit = "messages between processes";
      assume("CPU tensors: processes that exchange messages, with rough figures for a server");
      return false;
    } else if (o_.shared_gpu) {
      gpus_ = {0};
    } else if (f_.ranks > all) {
      f_.unknown = detail::concat(f_.ranks, " ranks need as many GPUs, but the topology has ", all);
    } else {
      gpus_.resize(size_t(f_.ranks));
      std::iota(gpus_.begin(), gpus_.end(), 0);
    }
    return f_.unknown.empty();
  }

  void find_generation() {
    for (int g : gpus_) {
      const GpuModel* model = find_gpu_model(gpu(g).name);
      int sm = gpu(g).sm.value_or(model ? model->sm : 0);
      if (sm && (!sm_ || sm < sm_)) sm_ = sm;
    }
    if (!sm_) {
      int links = 0;
      for (int j = 1; j < int(gpus_.size()); ++j) {
        const DevicePair& p = pair(gpus_[0], gpus_[size_t(j)]);
        if (p.path == PathClass::nvswitch) links = std::max(links, p.nvlinks);
        if (p.path == PathClass::nvlink) links += p.nvlinks;
      }
      sm_ = links > 12 ? 90 : links > 6 || links == 0 ? 80 : links == 6 ? 70 : 86;
      static constexpr const char* kWhat[] = {"V100 (sm 70)", "A100 (sm 80)", "A6000 or RTX 3090 (sm 86)",
                                              "H100 or H200 (sm 90)"};
      assume(detail::concat("the GPUs' model is not known: ",
                            links ? detail::concat("by their ", links, " NVLinks they are taken as ") : "taken as ",
                            kWhat[sm_ == 70   ? 0
                                  : sm_ == 80 ? 1
                                  : sm_ == 86 ? 2
                                              : 3]));
    }
    f_.generation = generation_of(sm_);
    f_.amd_cpu =
        std::any_of(t_.hosts.begin(), t_.hosts.end(), [](const HostInfo& h) { return names(h.cpu_vendor, "AMD"); });
  }

  // Ranks that share a GPU for tests pass as hosts of their own and meet over the loopback socket.
  void share_one_gpu() {
    f_.nodes = f_.ranks;
    f_.ring = {.count = 1, .intra_gbps = 1.2, .inter_gbps = 1.2, .orders = {{0}}, .limit = "sockets of one host"};
    f_.tree = f_.ring;
    assume("ranks share one GPU and talk through sockets: for tests of function, the times mean nothing");
  }

  void split_into_nodes() {
    bool one_domain = true;
    for (int a : gpus_)
      for (int b : gpus_)
        if (a != b) {
          one_domain &= pair(a, b).path == PathClass::nvswitch;
          if (pair(a, b).path == PathClass::unknown && gpu(a).host == gpu(b).host) {
            f_.unknown = detail::concat("how ", t_.device_name(a), " reaches ", t_.device_name(b), " is not known");
            return;
          }
        }
    if (one_domain) {
      nodes_ = {gpus_};
    } else {
      for (int g : gpus_) {
        if (nodes_.empty() || gpu(nodes_.back()[0]).host != gpu(g).host) nodes_.emplace_back();
        nodes_.back().push_back(g);
      }
    }
    f_.nodes = int(nodes_.size());
    for (const auto& node : nodes_)
      if (node.size() != nodes_[0].size())
        f_.unknown = detail::concat("hosts with ", nodes_[0].size(), " and ", node.size(),
                                    " ranks: the model needs as many on each");
  }

  // NCCL counts what card and slot can do; a link that was seen trained lower under load counts as that.
  double pcie_of(int g) {
    const GpuDevice& d = gpu(g);
    PcieLink link = d.pcie_judged || d.pcie_max.generation == 0 ? d.pcie : d.pcie_max;
    if (link.generation == 0) {  // a path over PCIe alone tells as much
      double best = 0;
      for (int other : gpus_) {
        const DevicePair& p = pair(g, other);
        if ((p.path == PathClass::pix || p.path == PathClass::pxb) && p.gbps) best = std::max(best, *p.gbps);
      }
      if (best > 0) return best;
      const GpuModel* model = find_gpu_model(d.name);
      link.generation = model ? model->pcie : sm_ >= 90 ? 5 : sm_ >= 80 ? 4 : 3;
      assume(detail::concat("the GPUs' PCIe is not known: taken as Gen", link.generation));
    }
    if (link.width == 0) {
      link.width = 16;
      assume("the width of the GPUs' PCIe is not known: taken as 16 lanes");
    }
    return link.gbps();
  }

  // NCCL splits wide channels in two: more of them keep more multiprocessors busy.
  Channels channels_from(const Rings& rings) const {
    Channels c;
    c.count = int(rings.orders.size());
    c.intra_gbps = c.inter_gbps = rings.step;
    c.nvlink = rings.nvlink;
    c.orders = rings.orders;
    for (const auto& o : c.orders) c.same_order &= o == c.orders[0];
    if (c.count > 0 && c.count <= kMostChannels / 2 && c.intra_gbps >= (sm_ >= 90 ? 50 : 25)) {
      c.count *= 2;
      c.intra_gbps /= 2;
      c.inter_gbps /= 2;
    }
    return c;
  }

  Channels rings_of(const std::vector<int>& node) {
    const size_t n = node.size();
    if (n == 1) {  // its rate is that of the network
      Channels c{.count = 1, .orders = {{node[0]}}};
      return c;
    }
    RingProblem problem;
    problem.nvlink.assign(n, std::vector<double>(n));
    problem.pcie_factor.assign(n, std::vector<double>(n));
    problem.pcie.assign(n, 0);
    problem.socket = sockets_of(node);
    bool switched = true;
    int links = 1 << 30;
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j)
        if (i != j) {
          const DevicePair& p = pair(node[i], node[j]);
          switched &= p.path == PathClass::nvswitch;
          if (over_nvlink(p.path)) {
            links = std::min(links, p.nvlinks);
            problem.nvlink[i][j] = p.nvlinks * nvlink_gbps_of_sm(sm_);
          }
        }
    if (switched) return switch_rings(node, links);

    Rings rings = search_rings(problem, intra_ladder(sm_), kMostChannels);
    if (!rings.orders.empty()) {
      Channels c = named(channels_from(rings), node);
      c.limit = detail::concat("NVLink: ", rings.orders.size(), " rings of ", number(rings.step), " GB/s");
      // Two bridged A100 reached 208 of 240 GB/s (nccl-tests#178).
      const GpuModel* model = find_gpu_model(gpu(node[0]).name);
      if (model && model->bridged() && sm_ == 80) {
        c.share = 0.87;
        c.limit += ", of which bridged cards reach 0.87";
      }
      return c;
    }
    return pcie_rings(node, problem);
  }

  Channels switch_rings(const std::vector<int>& node, int links) {
    double bus = links * nvlink_gbps_of_sm(sm_);
    f_.nvswitch_gbps = f_.nvswitch_gbps > 0 ? std::min(f_.nvswitch_gbps, bus) : bus;
    Rings rings;
    std::vector<int> order(node.size());
    std::iota(order.begin(), order.end(), 0);
    for (double step : intra_ladder(sm_)) {
      int count = std::min(int(bus / step + kSlack), kMostChannels);
      if (count * step > rings.total() + kSlack) rings = {step, {size_t(count), order}};
    }
    Channels c = named(channels_from(rings), node);
    c.limit = detail::concat(links, " NVLinks of ", number(nvlink_gbps_of_sm(sm_)),
                             " GB/s to the switches: ", number(bus), " GB/s for each GPU");
    return c;
  }

  // A topology file for NCCL may leave the NVLinks to the driver.
  bool nvlinks_told(const std::vector<int>& node) {
    if (t_.source != TopologySource::nccl_xml) return true;
    for (int g : node) {
      const GpuModel* model = find_gpu_model(gpu(g).name);
      bool expected = model ? model->nvlinks > 0 && !model->bridged() : !gpu(g).sm;
      if (expected && gpu(g).nvlinks_active.value_or(0) == 0) {
        f_.unknown = detail::concat("the file describes PCIe alone and leaves the NVLinks of ", t_.device_name(g),
                                    " to the driver");
        return false;
      }
    }
    return true;
  }

  Channels pcie_rings(const std::vector<int>& node, RingProblem& problem) {
    if (!nvlinks_told(node)) return {};
    const size_t n = node.size();
    const HostInfo* h = host(gpu(node[0]).host);
    bool intel = h && names(h->cpu_vendor, "Intel"), crosses = false;
    double narrowest = 1e9;
    size_t narrow = 0;
    double between = 0;
    for (size_t i = 0; i < n; ++i) {
      problem.pcie[i] = pcie_of(node[i]);
      if (problem.pcie[i] < narrowest) narrowest = problem.pcie[i], narrow = i;
      for (size_t j = 0; j < n; ++j)
        if (i != j) {
          const DevicePair& p = pair(node[i], node[j]);
          // Intel's root ports lose a sixth when one GPU writes to another.
          problem.pcie_factor[i][j] = intel && through_cpu(p.path) ? 1.2 : 1;
          if (p.peer != PeerAccess::ok && p.peer != PeerAccess::unknown)
            assume(
                "no peer access between some GPUs: NCCL copies through the hosts' memory, which may halve these "
                "speeds");
          if (problem.socket[i] == problem.socket[j]) continue;
          crosses = true;
          if (p.gbps) between = between > 0 ? std::min(between, *p.gbps) : *p.gbps;
        }
    }
    if (crosses) {
      problem.between_sockets = h ? socket_gbps(*h) : 0;
      if (problem.between_sockets == 0) problem.between_sockets = between;
      if (problem.between_sockets == 0) {
        problem.between_sockets = 10;
        assume(
            "the CPUs are not known: their link is taken as 10 GB/s (NCCL's figure for Intel's Skylake; AMD's is 16)");
      }
    }
    Rings rings = search_rings(problem, intra_ladder(sm_), kMostChannels);
    if (rings.orders.empty()) {
      rings = {std::min(narrowest, crosses ? problem.between_sockets : narrowest), {{}}};
      for (size_t i = 0; i < n; ++i) rings.orders[0].push_back(int(i));
      rings.nvlink = false;
      assume("no path is as fast as the smallest step of NCCL's search, which goes on with a makeshift ring");
    }
    Channels c = named(channels_from(rings), node);
    c.limit = rings.total() < 0.8 * narrowest && crosses
                  ? detail::concat("the link between sockets, ", number(problem.between_sockets), " GB/s")
                  : detail::concat("PCIe of ", t_.device_name(node[narrow]), ", ", number(narrowest), " GB/s");
    return c;
  }

  static Channels named(Channels c, const std::vector<int>& node) {
    for (auto& order : c.orders)
      for (int& g : order) g = node[size_t(g)];
    return c;
  }

  // GPUs that reach each other without the link between sockets.
  std::vector<int> sockets_of(const std::vector<int>& node) const {
    std::vector<int> socket(node.size());
    std::iota(socket.begin(), socket.end(), 0);
    for (size_t i = 0; i < node.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        auto a = gpu(node[i]).numa, b = gpu(node[j]).numa;
        PathClass p = pair(node[i], node[j]).path;
        bool near = (a && b && *a == *b) || p == PathClass::pix || p == PathClass::pxb || p == PathClass::phb ||
                    p == PathClass::node;
        if (near) {
          int from = socket[i], to = socket[j];
          for (int& s : socket)
            if (s == from) s = to;
        }
      }
    return socket;
  }

  void add_nvls() {
    if (!o_.nvls || f_.nvswitch_gbps <= 0 || sm_ < 90 || f_.ranks_per_node() < 2) return;
    bool unsure = false;
    for (int g : gpus_) {
      if (gpu(g).multicast == false) {
        assume("NVLS is left out: multicast does not work on " + t_.device_name(g));
        return;
      }
      unsure |= !gpu(g).multicast;
    }
    if (unsure) assume("NVLS counts as available: whether multicast works shows only on the machine");
    const int heads = f_.ranks_per_node();
    Channels c{.count = heads, .nvlink = true, .limit = f_.ring.limit};
    for (double step : intra_ladder(sm_)) {
      if (step <= f_.nvswitch_gbps + kSlack && c.inter_gbps == 0) c.inter_gbps = step;
      if (step * heads <= f_.nvswitch_gbps + kSlack) {
        c.intra_gbps = step;
        break;
      }
    }
    if (c.intra_gbps > 0) f_.nvls = c;
  }

  // Each channel enters a node by one NIC and leaves it by one. The network's steps bind unless PCIe does.
  void join_nodes() {
    int nics = 1 << 30;
    double gbps = 1e9;
    bool near = true;
    std::vector<int> hosts;
    for (const auto& node : nodes_) hosts.push_back(gpu(node[0]).host);
    for (int h : hosts) {
      auto [count, slowest, close] = nics_of(h);
      if (!f_.unknown.empty()) return;
      nics = std::min(nics, count);
      gbps = std::min(gbps, slowest);
      near &= close;
    }
    Channels& ring = f_.ring;
    const bool alone = f_.ranks_per_node() == 1;
    const double inside = alone ? 1e9 : ring.count * ring.intra_gbps;
    double best = 0;
    bool network = false;
    Channels joined = ring;
    for (double step : inter_ladder(sm_)) {
      if (step > gbps + kSlack || step > inside + kSlack) continue;
      int count = std::min(int(nics * std::floor(gbps / step + kSlack)), kMostChannels);
      // The last GPU of a node sends to the NIC: one hop in n is not inside.
      double share = double(f_.ranks_per_node() - 1) / f_.ranks_per_node();
      int room = alone ? count : int(inside / (step * share) + kSlack);
      if (std::min(count, room) * step > best + kSlack) {
        network = count <= room;
        count = std::min(count, room);
        best = count * step;
        joined.count = count;
        joined.intra_gbps = joined.inter_gbps = step;
      }
    }
    if (best == 0) {
      f_.unknown = "no channel fits through the network";
      return;
    }
    if (network)
      joined.limit = detail::concat(nics, " NIC", nics == 1 ? "" : "s", " of ", number(gbps), " GB/s for each host");
    if (!near && f_.ll128 && sm_ < 90) {
      f_.ll128 = false;
      assume("LL128 is left out: the NICs are not known to lie beside the GPUs");
    }
    f_.nvls.inter_gbps = joined.inter_gbps;
    ring = std::move(joined);
  }

  struct Nics {
    int count;
    double gbps;
    bool near;  // a NIC for GPUs over PCIe bridges alone
  };
  Nics nics_of(int h) {
    std::vector<double> speeds;
    bool near = false;
    const size_t gpus = t_.gpus.size();
    int beside = 0, unknown = 0;
    for (size_t k = 0; k < t_.nics.size(); ++k) {
      const NicDevice& nic = t_.nics[k];
      if (nic.host != h || !nic.up) continue;
      bool close = false;
      for (int g : gpus_)
        if (gpu(g).host == h && gpus + k < t_.pairs.size()) {
          PathClass p = t_.pairs[size_t(g)][gpus + k].path;
          close |= p == PathClass::pix || p == PathClass::pxb;
        }
      near |= close;
      if (!nic.gbps) {
        ++unknown;
        beside += close;
      } else {
        speeds.push_back(*nic.gbps);
      }
    }
    if (speeds.empty() && o_.nic_gbps) {
      int count = beside ? beside : unknown;
      if (count == 0) {
        count = 1;
        assume("the NICs are not known: taken as one for each host");
      }
      assume(detail::concat("NICs taken as ", count, " of ", number(*o_.nic_gbps), " GB/s for each host"));
      speeds.assign(size_t(count), *o_.nic_gbps);
    }
    if (speeds.empty()) {
      f_.unknown = "the speed of the NICs is not known; give it, such as --nic 400Gb/s";
      return {0, 0, false};
    }
    // Slow ports (management) do not carry collectives.
    double fastest = *std::max_element(speeds.begin(), speeds.end());
    std::erase_if(speeds, [&](double s) { return s < fastest / 2; });
    return {int(speeds.size()), *std::min_element(speeds.begin(), speeds.end()), near};
  }

  const Topology& t_;
  const PlanOptions& o_;
  Fabric f_;
  std::vector<int> gpus_;
  std::vector<std::vector<int>> nodes_;
  int sm_ = 0;
};

}  // namespace

Fabric search_fabric(const Topology& topology, const PlanOptions& options) {
  return Builder(topology, options).build();
}

}  // namespace xylem
