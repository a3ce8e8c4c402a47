// SPDX-License-Identifier: Apache-2.0
#include "distributed/launch/checks.h"

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

#include "core/util/text.h"
#include "distributed/launch/bind.h"
#include "distributed/topology/cpulist.h"
#include "distributed/watchdog/verdict.h"

namespace xylem {
namespace {

using watchdog::name_ranks;

bool on_gpus(const std::vector<RankInfo>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const RankInfo& r) { return r.device != "cpu"; });
}

// Ranks by the value of something, in order of first appearance.
std::vector<std::pair<std::string, std::vector<int>>> parties(
    const std::vector<RankInfo>& ranks, const std::function<std::string(const RankInfo&)>& value) {
  std::vector<std::pair<std::string, std::vector<int>>> list;
  for (const RankInfo& r : ranks) {
    std::string v = value(r);
    auto at = std::find_if(list.begin(), list.end(), [&](const auto& p) { return p.first == v; });
    if (at == list.end()) at = list.insert(list.end(), {v, {}});
    at->second.push_back(r.rank);
  }
  return list;
}

std::string list_parties(const std::vector<std::pair<std::string, std::vector<int>>>& list) {
  std::string text;
  for (const auto& [value, who] : list) text += (text.empty() ? "" : ", ") + value + " on " + name_ranks(who);
  return text;
}

void want_equal(LaunchProblems& problems, const std::vector<RankInfo>& ranks, bool fatal, const std::string& what,
                const std::function<std::string(const RankInfo&)>& value, const std::string& remedy) {
  auto list = parties(ranks, value);
  if (list.size() > 1)
    problems.push_back({fatal, "the ranks have different " + what + ": " + list_parties(list) + "; " + remedy});
}

// One sentence for all ranks of which the same is true.
void add_by_text(LaunchProblems& problems, const std::vector<RankInfo>& ranks, bool fatal,
                 const std::function<std::string(const RankInfo&)>& trouble) {
  for (const auto& [text, who] : parties(ranks, trouble))
    if (!text.empty()) problems.push_back({fatal, name_ranks(who) + ": " + text});
}

// Where the configuration of a rank first departs from that of rank 0: "[train] steps = 20 on rank 0, steps = 30 on
// rank 1"; "" unknown.
std::string config_difference(const std::vector<RankInfo>& ranks) {
  for (const RankInfo& r : ranks) {
    if (r.config == ranks[0].config) continue;
    std::istringstream ours(ranks[0].config_text), theirs(r.config_text);
    std::string a, b, section;
    while (true) {
      bool more = bool(std::getline(ours, a)), others = bool(std::getline(theirs, b));
      if (!more && !others) return "";
      if (!more) a = "nothing";
      if (!others) b = "nothing";
      if (a != b) return section + a + " on rank 0, " + b + " on rank " + std::to_string(r.rank);
      if (a.starts_with('[')) section = a + " ";
    }
  }
  return "";
}

}  // namespace

LaunchProblems check_launch(const std::vector<RankInfo>& ranks) {
  LaunchProblems all;
  for (auto check :
       {check_same_job, check_gpus, check_cpus, check_memory, check_hosts, check_nccl_variables, check_network})
    for (LaunchProblem& p : check(ranks)) all.push_back(std::move(p));
  return all;
}

LaunchProblems check_same_job(const std::vector<RankInfo>& ranks) {
  LaunchProblems p;
  const std::string difference = config_difference(ranks);
  want_equal(
      p, ranks, true, "versions of Xylem", [](const RankInfo& r) { return r.version; },
      "install the same build on all hosts");
  want_equal(
      p, ranks, true, "programs", [](const RankInfo& r) { return r.executable; },
      "the values are build ids of the program and of libxylem.so: copy the same files to all hosts, and look at "
      "PATH and LD_LIBRARY_PATH");
  want_equal(
      p, ranks, true, "arguments", [](const RankInfo& r) { return r.arguments; },
      "the values are hashes: start all ranks with the same command line");
  want_equal(
      p, ranks, true, "configurations", [](const RankInfo& r) { return r.config; },
      "the values are hashes: all hosts must read the same configuration file, and be given the same changes to it" +
          (difference.empty() ? "" : "; the first difference is " + difference));
  auto version = [](int v, std::string (*text)(int)) { return v ? text(v) : std::string("none"); };
  want_equal(
      p, ranks, true, "versions of NCCL", [&](const RankInfo& r) { return version(r.nccl, nccl_version_text); },
      "NCCL refuses that: look at LD_LIBRARY_PATH");
  want_equal(
      p, ranks, true, "versions of CUDA", [&](const RankInfo& r) { return version(r.cuda, cuda_version_text); },
      "look at LD_LIBRARY_PATH");
  want_equal(
      p, ranks, false, "NVIDIA drivers",
      [&](const RankInfo& r) { return "CUDA " + version(r.driver, cuda_version_text); },
      "results and speed may differ between the hosts; install the same driver");
  return p;
}

LaunchProblems check_gpus(const std::vector<RankInfo>& ranks) {
  LaunchProblems p;
  if (!on_gpus(ranks)) return p;
  auto kinds =
      parties(ranks, [](const RankInfo& r) { return r.device == "cpu" ? std::string("cpu") : std::string("a GPU"); });
  if (kinds.size() > 1)
    p.push_back({true, "some ranks have a GPU and some none: " + list_parties(kinds) +
                           "; start as many ranks per host as it has GPUs, or set run.device = \"cpu\""});
  std::map<std::pair<std::string, std::string>, std::vector<const RankInfo*>> users;  // of a GPU
  for (const RankInfo& r : ranks)
    if (!r.pci.empty()) users[{r.boot_id.empty() ? r.host : r.boot_id, r.pci}].push_back(&r);
  for (const auto& [gpu, list] : users) {
    if (list.size() < 2) continue;
    const RankInfo& first = *list[0];
    std::vector<int> who;
    for (const RankInfo* r : list) who.push_back(r->rank);
    std::string text = name_ranks(who) + " are on the same GPU, " + gpu.second + " of " + first.host;
    if (first.share_gpu) {
      p.push_back({false, text + ": XY_SHARE_GPU=1 permits it, for tests of correctness. Collectives take milliseconds "
                                 "this way, so never measure speed"});
      continue;
    }
    if (first.local_size > first.gpus)
      text += ", which has " + std::to_string(first.gpus) + (first.gpus == 1 ? " GPU" : " GPUs") + " for " +
              std::to_string(first.local_size) + " ranks";
    p.push_back(
        {true, text + ", and NCCL refuses that (\"Duplicate GPU detected\"). Start at most one rank per GPU (mpirun "
                      "-np, --map-by ppr:N:node; srun --ntasks-per-node, --gpus-per-node), leave run.device at "
                      "\"auto\", and look at CUDA_VISIBLE_DEVICES; XY_SHARE_GPU=1 permits it for tests"});
  }
  want_equal(
      p, ranks, false, "GPUs", [](const RankInfo& r) { return r.gpu; }, "the slowest sets the pace");
  return p;
}

LaunchProblems check_cpus(const std::vector<RankInfo>& ranks) {
  LaunchProblems p;
  bool gpus = on_gpus(ranks);
  add_by_text(p, ranks, false, [&](const RankInfo& r) -> std::string {
    std::string has = std::to_string(r.cpu_count) + (r.cpu_count == 1 ? " CPU" : " CPUs");
    if (r.threads > r.cpu_count)
      return std::to_string(r.threads) + " threads share " + has + " (" + r.cpus +
             "), which makes every step wait; set OMP_NUM_THREADS=" + std::to_string(std::max(1, r.cpu_count)) +
             ", or give each rank more CPUs (mpirun --bind-to none, srun --cpus-per-task=" + std::to_string(r.threads) +
             ")";
    if (gpus && r.cpu_count < 4 && r.cpus_of_machine >= 4 * r.local_size && !r.bound)
      return "only " + has + " (" + r.cpus + ") of " + std::to_string(r.cpus_of_machine) +
             " for the program, its data loader and NCCL's threads, which slows NCCL down many times; use mpirun "
             "--bind-to none or srun --cpus-per-task=8";
    return "";
  });
  // Threads of a host together, where each rank alone has enough.
  std::map<int, std::vector<const RankInfo*>> nodes;
  for (const RankInfo& r : ranks) nodes[r.node].push_back(&r);
  for (const auto& [node, list] : nodes) {
    int threads = 0;
    std::set<int> cpus;
    bool alone_too_many = false;
    for (const RankInfo* r : list) {
      threads += r->threads;
      for (int c : parse_cpulist(r->cpus).value_or(std::vector<int>{})) cpus.insert(c);
      alone_too_many |= r->threads > r->cpu_count;
    }
    if (list.size() > 1 && threads > int(cpus.size()) && !cpus.empty() && !alone_too_many)
      p.push_back(
          {false,
           "the " + std::to_string(list.size()) + " ranks of " + list[0]->host + " run " + std::to_string(threads) +
               " threads on " + std::to_string(cpus.size()) + (cpus.size() == 1 ? " CPU; " : " CPUs; ") +
               (list.size() > cpus.size() ? "start fewer ranks"
                                          : "set OMP_NUM_THREADS=" + std::to_string(cpus.size() / list.size()))});
  }
  return p;
}

LaunchProblems check_memory(const std::vector<RankInfo>& ranks) {
  constexpr int64_t kShm = 512 << 20;
  LaunchProblems p;
  add_by_text(p, ranks, false, [&](const RankInfo& r) -> std::string {
    if (r.local_size < 2 || !r.shm_bytes || *r.shm_bytes >= kShm) return "";
    return "/dev/shm of " + r.host + " has " + human_bytes(double(*r.shm_bytes)) +
           ", too little for the ranks of a host to exchange data through it (\"unhandled system error\", bus errors); "
           "start the container with --shm-size=1g or --ipc=host";
  });
  add_by_text(p, ranks, false, [&](const RankInfo& r) -> std::string {
    if (!r.infiniband || !r.memlock_bytes || *r.memlock_bytes >= int64_t(1) << 34) return "";
    return "the limit on locked memory of " + r.host + " is " + human_bytes(double(*r.memlock_bytes)) +
           ", which InfiniBand soon exceeds; run `ulimit -l unlimited`, raise memlock in /etc/security/limits.conf, or "
           "start the container with --ulimit memlock=-1";
  });
  return p;
}

LaunchProblems check_hosts(const std::vector<RankInfo>& ranks) {
  std::map<int, int> count;
  std::map<int, std::string> host;
  for (const RankInfo& r : ranks) ++count[r.node], host[r.node] = r.host;
  bool uneven =
      std::any_of(count.begin(), count.end(), [&](const auto& c) { return c.second != count.begin()->second; });
  if (!uneven) return {};
  std::string text;
  for (const auto& [node, n] : count) text += (text.empty() ? "" : ", ") + std::to_string(n) + " on " + host[node];
  return {{false, "the hosts have different numbers of ranks (" + text +
                      "): the hosts with fewer lanes to the network set the pace, and some versions of NCCL hang; use "
                      "mpirun --map-by ppr:N:node or srun --ntasks-per-node=N"}};
}

}  // namespace xylem
