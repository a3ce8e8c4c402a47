// SPDX-License-Identifier: Apache-2.0
#include "distributed/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/util/check.h"
#include "core/util/hash.h"
#include "core/util/text.h"
#include "distributed/plan/graph_search.h"
#include "distributed/plan/measured.h"

namespace xylem {
namespace {

constexpr const char* kCollectives[] = {"broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"};
constexpr const char* kAlgorithms[] = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
constexpr const char* kProtocols[] = {"ll", "ll128", "simple"};
constexpr const char* kBases[] = {"predicted", "measured", "pinned"};

template <class T, size_t N>
std::optional<T> parse(const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; ++i)
    if (name == names[i]) return T(i);
  return std::nullopt;
}

constexpr double kSmallest = 8, kLargest = double(int64_t(16) << 30);  // sizes that are looked at
constexpr double kClear = 1.2;

// One way to do a collective and what it takes.
struct Candidate {
  Algorithm algorithm = Algorithm::ring;
  std::optional<Protocol> protocol = {};
  double us = 0;
  bool same(const Candidate& o) const { return algorithm == o.algorithm && protocol == o.protocol; }
  std::string name() const {
    return std::string(name_of(algorithm)) + (protocol ? std::string(" ") + name_of(*protocol) : "");
  }
};
using Candidates = std::vector<Candidate>;  // fastest first

std::string percent_more(double us, double best) {
  char text[32];
  std::snprintf(text, sizeof text, "+%.0f %%", 100 * (us / best - 1));
  return text;
}

class Planner {
 public:
  Planner(const CostModel& model, const PlanOptions& options) : model_(model), o_(options) {}

  void plan(CollectiveKind kind, std::vector<PlanEntry>& entries) {
    struct Range {
      double from;
      Candidate choice;
      bool measured;
    };
    std::vector<Range> ranges;
    auto best = [&](double bytes) {
      Range r{bytes, {}, false};
      Candidates all = candidates(kind, bytes, r.measured);
      if (!all.empty()) r.choice = all[0];
      return r;
    };
    auto same = [](const Range& x, const Range& y) { return x.choice.same(y.choice) && x.measured == y.measured; };
    // Steps of a quarter of an octave, each change of the choice then located to the byte.
    for (double at = kSmallest, before = 0; at <= kLargest * 1.001; before = at, at *= std::pow(2, 0.25)) {
      Range now = best(at);
      if (now.choice.us <= 0) return;  // no way at all
      if (!ranges.empty() && same(ranges.back(), now)) continue;
      auto low = int64_t(before), high = int64_t(std::ceil(at));
      while (!ranges.empty() && high - low > 1) {
        int64_t middle = (low + high) / 2;
        (same(best(double(middle)), now) ? high : low) = middle;
      }
      now.from = ranges.empty() ? 0 : double(high);
      ranges.push_back(now);
    }
    for (size_t i = 0; i < ranges.size(); ++i)
      entries.push_back(entry(kind, ranges[i].from, i + 1 < ranges.size() ? ranges[i + 1].from : 0));
  }

 private:
  // All ways that the options allow. Where two and more algorithms were measured the model has no say.
  Candidates candidates(CollectiveKind kind, double bytes, bool& measured) const {
    Candidates all;
    if (o_.measured)
      for (int a = 0; a < 7; ++a)
        if (auto us = o_.measured->time_us(kind, Algorithm(a), bytes); us && allowed(kind, Algorithm(a)))
          all.push_back({Algorithm(a), std::nullopt, *us});
    measured = all.size() >= (pinned(kind) ? 1 : 2) && !o_.deterministic;
    if (!measured) {
      all.clear();
      for (const auto& c : model_.ranked(kind, bytes))
        if (allowed(kind, c.algorithm) && (!o_.deterministic || c.protocol == Protocol::simple))
          all.push_back({c.algorithm, c.protocol, c.time_us});
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& x, const auto& y) { return x.us < y.us; });
    return all;
  }

  bool pinned(CollectiveKind) const { return o_.algorithm != "auto" || o_.deterministic; }
  bool allowed(CollectiveKind kind, Algorithm a) const {
    if (!pinned(kind)) return true;
    // There is a tree for all_reduce alone; on hosts for broadcast and reduce too.
    bool has_tree = kind == CollectiveKind::all_reduce || (model_.fabric().cpu && has_tree_on_hosts(kind));
    return a == (o_.algorithm == "tree" && has_tree ? Algorithm::tree : Algorithm::ring);
  }
  static bool has_tree_on_hosts(CollectiveKind k) {
    return k == CollectiveKind::broadcast || k == CollectiveKind::reduce;
  }

  PlanEntry entry(CollectiveKind kind, double from, double to) const {
    double low = std::max(from, kSmallest), high = to > 0 ? to : std::max(4 * from, double(1 << 30));
    PlanEntry e{.kind = kind, .from_bytes = int64_t(from), .to_bytes = to > 0 ? int64_t(to) : INT64_MAX};
    e.at_bytes = int64_t(std::sqrt(low * high));
    bool measured = false;
    Candidates all = candidates(kind, double(e.at_bytes), measured);
    const Candidate& best = all[0];
    e.algorithm = best.algorithm;
    e.protocol = best.protocol;
    e.time_us = best.us;
    e.busbw_gbps = bus_bandwidth(kind, model_.fabric().ranks, double(e.at_bytes), best.us);
    e.basis = pinned(kind) ? Basis::pinned : measured ? Basis::measured : Basis::predicted;
    if (o_.deterministic) e.channels = std::max(1, model_.fabric().ring.count);
    e.clear = all.size() < 2 || all[1].us >= kClear * best.us || pinned(kind);
    e.reason = measured ? measured_reason(all) : reason(kind, all, double(e.at_bytes));
    if (pinned(kind))
      e.reason = std::string(o_.deterministic ? "pinned for equal results" : "pinned") + "; " + e.reason;
    return e;
  }

  static std::string measured_reason(const Candidates& all) {
    std::string text = "measured here";
    for (size_t i = 1; i < all.size(); ++i)
      text += (i == 1 ? "; " : ", ") + all[i].name() + " " + percent_more(all[i].us, all[0].us);
    return text;
  }

  // The formula of the choice, how far the next one is behind, and what holds the best tree or ring back.
  std::string reason(CollectiveKind kind, const Candidates& all, double at) const {
    const Candidate& best = all[0];
    const Cost& cost = model_.cost(kind, best.algorithm, *best.protocol);
    std::string text = cost.str();
    if (all.size() < 2) return text;
    const Candidate& next = all[1];
    text += "; next " + next.name() + " " + percent_more(next.us, best.us) + crossing(kind, best, next, at);
    for (const Candidate& other : all) {
      if (other.algorithm == best.algorithm || other.algorithm == next.algorithm) continue;
      text += "; " + other.name() + " " + percent_more(other.us, best.us);
      break;
    }
    return text;
  }

  // Where the other becomes faster than the best at `from` bytes, corrections for the size included.
  std::string crossing(CollectiveKind kind, const Candidate& best, const Candidate& other, double from) const {
    const Cost &mine = model_.cost(kind, best.algorithm, *best.protocol),
               &cost = model_.cost(kind, other.algorithm, *other.protocol);
    auto faster = [&](double bytes) {
      return *model_.time_us(kind, other.algorithm, *other.protocol, bytes) <
             *model_.time_us(kind, best.algorithm, *best.protocol, bytes);
    };
    const bool above = cost.gbps > mine.gbps;
    double step = above ? std::sqrt(2) : 1 / std::sqrt(2), near = from, far = from * step;
    while (far > kSmallest && far < kLargest && !faster(far)) near = far, far *= step;
    std::string text = " (" + cost.str();
    if (far < kSmallest || !faster(far)) return text + ")";
    for (int i = 0; i < 40; ++i) (faster((near + far) / 2) ? far : near) = (near + far) / 2;
    return text + (above ? ", better above " : ", better below ") + human_bytes(far) + ")";
  }

 private:
  const CostModel& model_;
  const PlanOptions& o_;
};

std::string time_text(double us) {
  char text[32];
  if (us < 1000)
    std::snprintf(text, sizeof text, "%.3g us", us);
  else
    std::snprintf(text, sizeof text, "%.4g ms", us / 1000);
  return text;
}

}  // namespace

const char* name_of(CollectiveKind k) { return kCollectives[int(k)]; }
const char* name_of(Algorithm a) { return kAlgorithms[int(a)]; }
const char* name_of(Protocol p) { return kProtocols[int(p)]; }
const char* name_of(Basis b) { return kBases[int(b)]; }
std::optional<CollectiveKind> parse_collective(const std::string& n) { return parse<CollectiveKind>(kCollectives, n); }
std::optional<Algorithm> parse_algorithm(const std::string& n) { return parse<Algorithm>(kAlgorithms, n); }
std::optional<Protocol> parse_protocol(const std::string& n) { return parse<Protocol>(kProtocols, n); }
std::optional<Basis> parse_basis(const std::string& n) { return parse<Basis>(kBases, n); }

double bus_bandwidth(CollectiveKind kind, int ranks, double bytes, double time_us) {
  double n = ranks, share = kind == CollectiveKind::all_reduce ? 2 * (n - 1) / n
                            : kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter ? (n - 1) / n
                                                                                                           : 1;
  return time_us > 0 ? share * bytes / (1000 * time_us) : 0;
}

const PlanEntry* Plan::find(CollectiveKind kind, int64_t bytes) const {
  for (const PlanEntry& e : entries)
    if (e.kind == kind && bytes >= e.from_bytes && bytes < e.to_bytes) return &e;
  return nullptr;
}

std::string Plan::explain(CollectiveKind kind) const {
  std::string text = detail::concat(name_of(kind), ", ", ranks, " rank", ranks == 1 ? "" : "s", " on ", nodes, " node",
                                    nodes == 1 ? "" : "s", "\n");
  bool any = false;
  for (const PlanEntry& e : entries) {
    if (e.kind != kind) continue;
    char line[256];
    if (!any) {
      std::snprintf(line, sizeof line, "  %-10s %-17s %-10s %-10s %-9s %s\n", "below", "choice", "for", "takes",
                    "bus GB/s", "basis");
      text += line;
      any = true;
    }
    std::string choice =
        std::string(name_of(e.algorithm)) + (e.protocol ? std::string(" ") + name_of(*e.protocol) : "");
    std::string end = e.to_bytes == INT64_MAX ? "-" : human_bytes(double(e.to_bytes));
    std::snprintf(line, sizeof line, "  %-10s %-17s %-10s %-10s %-9.4g %s%s\n", end.c_str(), choice.c_str(),
                  human_bytes(double(e.at_bytes)).c_str(), time_text(e.time_us).c_str(), e.busbw_gbps, name_of(e.basis),
                  e.clear ? "" : ", no clear winner");
    text += line;
    text += "             " + e.reason + "\n";
  }
  if (!any) text += "  no plan: the library chooses\n";
  return text;
}

std::string Plan::explain() const {
  std::string text, before;
  for (auto kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                    CollectiveKind::broadcast, CollectiveKind::reduce}) {
    std::string table = explain(kind), rows = table.substr(table.find('\n'));
    text += rows == before ? std::string(name_of(kind)) + ": the same\n" : table;
    before = rows;
  }
  for (const std::string& n : notes) text += "note: " + n + "\n";
  return text;
}

std::string Plan::hash() const { return hex(fnv1a(to_json())); }

Plan make_plan(const Topology& topology, const PlanOptions& options) {
  XY_CHECK(options.algorithm == "auto" || options.algorithm == "ring" || options.algorithm == "tree",
           "algorithm needs auto, ring or tree but got \"", options.algorithm, "\"");
  Fabric fabric = search_fabric(topology, options);
  Plan plan{.entries = {},
            .ranks = fabric.ranks,
            .nodes = fabric.nodes,
            .topology = topology.fingerprint(),
            .notes = fabric.assumptions};
  if (!fabric.unknown.empty()) {
    plan.notes.push_back("no plan: " + fabric.unknown);
    return plan;
  }
  if (fabric.ranks < 2) return plan;
  plan.notes.insert(plan.notes.begin(), "limit: " + fabric.ring.limit);
  CostModel model(fabric);
  Planner planner(model, options);
  for (int k = 0; k < 5; ++k) planner.plan(CollectiveKind(k), plan.entries);
  return plan;
}

}  // namespace xylem
