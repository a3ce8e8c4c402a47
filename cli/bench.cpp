// SPDX-License-Identifier: Apache-2.0
// `xylem bench collectives`: how long collectives take here, by algorithm and size, beside what the plan predicts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/device/device.h"
#include "core/util/check.h"
#include "distributed/group/group.h"
#include "distributed/job/machine.h"
#include "distributed/job/plan.h"
#include "distributed/plan/graph_search.h"
#include "distributed/plan/measured.h"
#include "distributed/plan/tuner.h"
#include "distributed/world/launcher.h"
#include "distributed/world/world.h"
#include "ops/ops.h"

namespace xylem::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string sizes = "8..256M", device = "auto";
  std::vector<std::string> collectives = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
  std::vector<std::string> algorithms;
  int iterations = 20;
  bool json = false, save = false;
};

int64_t parse_size(const std::string& text) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  static constexpr char units[] = "KMG";
  int64_t factor = 1;
  if (end > 0 && end < text.size())
    if (const char* u = std::strchr(units, text[end]); u && *u) {
      factor = int64_t(1) << (10 * (u - units + 1));
      ++end;
    }
  XY_CHECK(end > 0 && end == text.size() && value >= 1, "a size is a number with K, M or G, not \"", text, "\"");
  return int64_t(value * double(factor));
}

// "8..1G": powers of four between; "1K,1M": these.
std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  if (size_t dots = text.find(".."); dots != std::string::npos) {
    int64_t last = parse_size(text.substr(dots + 2));
    for (int64_t s = parse_size(text.substr(0, dots)); s < last; s *= 4) sizes.push_back(s);
    sizes.push_back(last);
  } else {
    for (size_t at = 0; at <= text.size();) {
      size_t comma = std::min(text.find(',', at), text.size());
      sizes.push_back(parse_size(text.substr(at, comma - at)));
      at = comma + 1;
    }
  }
  return sizes;
}

// One collective of `bytes` (the larger of what a rank sends and receives), of f32.
class Trial {
 public:
  Trial(const Group& group, Device device, CollectiveKind kind, int64_t bytes)
      : group_(group), kind_(kind), n_(group.size()) {
    elements_ = std::max<int64_t>(n_, bytes / 4 / n_ * n_);
    full_ = full({elements_}, float(group.rank() + 1), f32, device);
    part_ = full({elements_ / n_}, float(group.rank() + 1), f32, device);
  }
  int64_t bytes() const { return elements_ * 4; }

  Work start() const {
    switch (kind_) {
      case CollectiveKind::all_reduce:
        return group_.all_reduce(full_, ReduceOp::max);  // repeats without growing
      case CollectiveKind::all_gather:
        return group_.all_gather(full_, part_);
      case CollectiveKind::reduce_scatter:
        return group_.reduce_scatter(part_, full_, ReduceOp::sum);
      case CollectiveKind::broadcast:
        return group_.broadcast(full_, 0);
      default:
        return group_.reduce(full_, 0, ReduceOp::max);
    }
  }

  // Whether the first run gave what it must.
  bool right() const {
    start().wait();
    const int rank = group_.rank();
    auto holds = [](const Tensor& t, int64_t from, int64_t count, float value) {
      std::vector<float> got = t.to_vector<float>();
      for (int64_t i : {from, from + count / 2, from + count - 1})
        if (got[size_t(i)] != value) return false;
      return true;
    };
    bool good = true;
    switch (kind_) {
      case CollectiveKind::all_gather:
        for (int r = 0; r < n_; ++r) good &= holds(full_, r * (elements_ / n_), elements_ / n_, float(r + 1));
        return good;
      case CollectiveKind::reduce_scatter:
        return holds(part_, 0, elements_ / n_, 0.5f * float(n_ * (n_ + 1)));
      case CollectiveKind::broadcast:
        return holds(full_, 0, elements_, 1);
      case CollectiveKind::reduce:
        return rank != 0 || holds(full_, 0, elements_, float(n_));
      default:
        return holds(full_, 0, elements_, float(n_));
    }
  }

 private:
  const Group& group_;
  CollectiveKind kind_;
  int64_t n_, elements_ = 0;
  Tensor full_, part_;
};

// The median over a few rounds; a round's time is that of the slowest rank.
double measure_us(const Trial& trial, const Group& group, Device device, int iterations) {
  std::vector<double> rounds;
  for (int round = 0; round < 5; ++round) {
    if (device.is_cuda()) current_stream(device).synchronize();
    group.barrier();
    auto from = Clock::now();
    for (int i = 0; i < iterations; ++i) trial.start().wait();
    if (device.is_cuda()) current_stream(device).synchronize();
    double mine = std::chrono::duration<double, std::micro>(Clock::now() - from).count() / iterations;
    auto all = group.gather_integers(int64_t(mine * 1000));
    rounds.push_back(double(*std::max_element(all.begin(), all.end())) / 1000);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

struct Row {
  CollectiveKind kind;
  Algorithm algorithm;
  int64_t bytes;
  double us;
  std::optional<double> predicted;
  bool right, chosen = false, best = false;
};

// A plan that is one algorithm for everything, so that both backends use it.
Plan only(Algorithm a, int ranks, const std::string& topology) {
  Plan plan{.entries = {}, .ranks = ranks, .nodes = 1, .topology = topology, .notes = {}};
  for (int k = 0; k < 5; ++k)
    plan.entries.push_back({.kind = CollectiveKind(k), .algorithm = a, .basis = Basis::pinned});
  return plan;
}

bool offers(CollectiveKind kind, Algorithm a, bool cpu) {
  const bool spreads = kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce;
  if (a == Algorithm::ring) return true;
  if (a == Algorithm::tree) return kind == CollectiveKind::all_reduce || (cpu && spreads);
  return !cpu && !spreads;
}

void print(const std::vector<Row>& rows, int ranks, bool shared) {
  std::printf("  %-15s %-10s %12s %10s %9s %9s %10s\n", "collective", "algorithm", "bytes", "us", "alg GB/s",
              "bus GB/s", shared ? "" : "predicted");
  for (const Row& r : rows) {
    char predicted[32] = "";
    if (r.predicted && !shared) std::snprintf(predicted, sizeof predicted, "%.1f", *r.predicted);
    std::printf("  %-15s %-10s %12lld %10.1f %9.2f %9.2f %10s  %s%s\n", name_of(r.kind), name_of(r.algorithm),
                static_cast<long long>(r.bytes), r.us, double(r.bytes) / r.us / 1000,
                bus_bandwidth(r.kind, ranks, double(r.bytes), r.us), predicted,
                r.chosen ? (r.best ? "<- plan, right" : "<- plan, wrong") : "", r.right ? "" : "  WRONG RESULT");
  }
}

void run(const Arguments& a) {
  const Device device = Device::parse(a.device);
  const Group group = Group::world();
  const bool cpu = !device.is_cuda(), root = group.rank() == 0, shared = !cpu && share_gpu();
  const int ranks = group.size();
  const Topology machine = job_machine(group, device);
  PlanOptions options;
  options.ranks = ranks;
  options.cpu = cpu;
  options.shared_gpu = shared;
  const int nodes = world().nodes;
  const bool known = cpu || !machine.gpus.empty();
  Plan plan = share_plan(root && known ? make_plan(machine, options) : Plan(), group);
  Fabric fabric;
  if (known)
    fabric = search_fabric(machine, options);
  else
    fabric.unknown = "the machine is not known";
  CostModel model(fabric);

  std::vector<Algorithm> algorithms;
  for (const std::string& name : a.algorithms) {
    auto parsed = parse_algorithm(name);
    XY_CHECK(parsed, "--algorithms needs ring, tree, nvls, nvls_tree or pat but got \"", name, "\"");
    algorithms.push_back(*parsed);
  }
  if (ranks == 1) {
    algorithms = {Algorithm::ring};  // all are the same copy
  } else if (algorithms.empty()) {
    algorithms = {Algorithm::ring, Algorithm::tree};
    if (!cpu && model.fabric().nvls.count > 0) algorithms.push_back(nodes > 1 ? Algorithm::nvls_tree : Algorithm::nvls);
  }

  std::vector<Row> rows;
  for (const std::string& name : a.collectives) {
    auto kind = parse_collective(name);
    XY_CHECK(kind, "--collectives needs all_reduce, all_gather, reduce_scatter, broadcast or reduce but got \"", name,
             "\"");
    for (int64_t bytes : parse_sizes(a.sizes)) {
      const size_t first = rows.size();
      for (Algorithm algorithm : algorithms) {
        if (!offers(*kind, algorithm, cpu)) continue;
        obey(only(algorithm, ranks, plan.topology), device);
        Trial trial(group, device, *kind, bytes);
        const bool good = trial.right();
        auto votes = group.gather_integers(good);
        // Where NCCL had nothing of the kind it did something else: that is no measurement.
        std::string used = cpu ? name_of(algorithm) : tuner::last_choice(group.name());
        if (!cpu && tuner::asked() && !used.starts_with(std::string(name_of(algorithm)) + " ")) continue;
        const int iterations = int(std::clamp<int64_t>((64 << 20) / std::max<int64_t>(bytes, 1), 1, a.iterations));
        Row row{.kind = *kind, .algorithm = algorithm, .bytes = trial.bytes(), .us = 0, .predicted = {}, .right = true};
        row.us = measure_us(trial, group, device, shared ? std::min(iterations, 3) : iterations);
        row.right = std::all_of(votes.begin(), votes.end(), [](int64_t v) { return v; });
        for (int p = 0; p < 3 && ranks > 1; ++p)
          if (auto us = model.time_us(*kind, algorithm, Protocol(p), double(trial.bytes())))
            row.predicted = std::min(row.predicted.value_or(*us), *us);
        rows.push_back(row);
      }
      if (rows.size() == first) continue;
      auto fastest = std::min_element(rows.begin() + long(first), rows.end(),
                                      [](const Row& x, const Row& y) { return x.us < y.us; });
      const PlanEntry* entry = plan.find(*kind, fastest->bytes);
      for (auto r = rows.begin() + long(first); r != rows.end(); ++r) {
        r->best = r->us <= 1.05 * fastest->us;
        r->chosen = entry && entry->algorithm == r->algorithm && rows.size() - first > 1;
      }
    }
  }
  tuner::clear();
  obey(plan, device);
  if (!root) return;

  bool wrong_result = std::any_of(rows.begin(), rows.end(), [](const Row& r) { return !r.right; });
  if (a.json) {
    nlohmann::ordered_json j = {{"ranks", ranks},
                                {"nodes", nodes},
                                {"device", device.str()},
                                {"topology", plan.topology},
                                {"functional_only", shared},
                                {"rows", nlohmann::ordered_json::array()}};
    for (const Row& r : rows)
      j["rows"].push_back({{"collective", name_of(r.kind)},
                           {"algorithm", name_of(r.algorithm)},
                           {"bytes", r.bytes},
                           {"time_us", r.us},
                           {"algbw_gbps", double(r.bytes) / r.us / 1000},
                           {"busbw_gbps", bus_bandwidth(r.kind, ranks, double(r.bytes), r.us)},
                           {"predicted_us", r.predicted ? nlohmann::ordered_json(*r.predicted) : nullptr},
                           {"chosen", r.chosen},
                           {"best", r.best},
                           {"right", r.right}});
    std::printf("%s\n", j.dump(1).c_str());
  } else {
    std::printf("%d rank%s on %d host%s, %s%s\n", ranks, ranks == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s",
                cpu ? "CPU tensors over MPI" : "NCCL",
                shared ? "; FUNCTIONAL ONLY: the ranks share one GPU and the times mean nothing" : "");
    if (ranks == 1)
      std::printf(
          "  note: with one rank nothing travels; these are copies. Start several: mpirun -np 4 xylem bench ...\n");
    for (const std::string& c : tuner::conflicts()) std::printf("  note: %s\n", c.c_str());
    print(rows, ranks, shared);
    int right = 0, judged = 0;
    for (const Row& r : rows) judged += r.chosen, right += r.chosen && r.best;
    if (judged && !shared) std::printf("the plan chose right in %d of %d cases\n", right, judged);
  }
  if (a.save && !shared && ranks > 1) {
    const HostInfo host = machine.hosts.empty() ? HostInfo{} : machine.hosts[0];
    MeasuredTable table{plan.topology, host.nccl, host.driver, ranks, nodes, {}};
    for (const Row& r : rows)
      if (r.right) table.rows.push_back({r.kind, r.algorithm, r.bytes, r.us});
    std::string file = save_measured(table, machine);
    if (!a.json) std::printf("saved %s\n", file.c_str());
  }
  XY_CHECK(!wrong_result, "a collective gave a wrong result");
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* bench = app.add_subcommand("bench", "Measure what the machine does");
  bench->require_subcommand(1);
  CLI::App* cmd = bench->add_subcommand(
      "collectives", "Time collectives by algorithm and size, beside the plan's prediction; start it with mpirun");
  cmd->add_option("--sizes", a->sizes, "8..256M (powers of four) or a list: 1K,1M")->capture_default_str();
  cmd->add_option("--collectives", a->collectives, "all_reduce, all_gather, reduce_scatter, broadcast, reduce")
      ->delimiter(',');
  cmd->add_option("--algorithms", a->algorithms, "ring, tree, nvls, nvls_tree, pat; default: ring, tree and NVLS")
      ->delimiter(',');
  cmd->add_option("--device", a->device, "cpu, cuda or auto")->capture_default_str();
  cmd->add_option("--iterations", a->iterations, "at most so many in a round; five rounds")->capture_default_str();
  cmd->add_flag("--json", a->json, "as JSON");
  cmd->add_flag("--save", a->save, "keep the times: they overrule the cost model in later plans");
  cmd->callback([a] { run(*a); });
}

}  // namespace xylem::cli
