// SPDX-License-Identifier: Apache-2.0
#include "distributed/launch/run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "core/device/info.h"
#include "core/random/rng.h"
#include "core/util/check.h"
#include "core/util/file_error.h"
#include "core/util/parallel.h"
#include "distributed/group/group.h"
#include "distributed/launch/bind.h"
#include "distributed/launch/checks.h"
#include "distributed/launch/job_trace.h"
#include "distributed/parallel/verify.h"
#include "distributed/record/recorder.h"
#include "distributed/record/trace.h"
#include "distributed/topology/cpulist.h"
#include "distributed/watchdog/watchdog.h"
#include "distributed/world/launcher.h"

#ifdef XY_WITH_CUDA
#include "core/device/cuda.h"
#endif

namespace xylem {
namespace {

using Strings = std::vector<std::string>;

// Rank as the launcher says, before and without MPI; -1 without a launcher.
int launched_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(variable)) return std::atoi(value);
  return -1;
}

void set_threads([[maybe_unused]] int64_t n) {
#ifdef _OPENMP
  if (n > 0) omp_set_num_threads(int(n));
#endif
}

Device use(Device device) {
#ifdef XY_WITH_CUDA
  if (device.is_cuda()) XY_CUDA(cudaSetDevice(device.index));
#endif
  return device;
}

int one_node(const std::vector<int>& cpus) {
  int node = -1;
  for (int cpu : cpus)
    for (int n = 0; n < 64; ++n)
      if (::access(("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/node" + std::to_string(n)).c_str(), F_OK) ==
          0) {
        if (node >= 0 && node != n) return -1;
        node = n;
        break;
      }
  return node;
}

// What `mine` is on every rank of this host, by local rank.
Strings gather_on_host(const Group& world_group, const std::string& mine) {
  const World& w = world();
  Strings all = world_group.gather_strings(std::to_string(w.node) + " " + mine), local;
  std::string prefix = std::to_string(w.node) + " ";
  for (const std::string& text : all)
    if (text.starts_with(prefix)) local.push_back(text.substr(prefix.size()));
  return local;
}

Device choose_device(const Group& world_group, const std::string& wanted) {
  const World& w = world();
  Strings all = gather_on_host(world_group, std::to_string(one_node(current_cpus())));
  if (wanted != "auto" || !cuda_available()) return Device::parse(wanted);
  std::vector<int> gpus, ranks;
  for (int g = 0; g < cuda_device_count(); ++g) gpus.push_back(numa_of_pci(pci_of_gpu(g)).value_or(-1));
  for (const std::string& node : all) ranks.push_back(std::atoi(node.c_str()));
  return Device::cuda(assign_gpus(gpus, ranks)[size_t(w.local_rank)]);
}

// Binds this process if that is useful; true if it did.
bool bind_near(const Group& world_group, const std::string& pci) {
  std::string near = cpus_near(pci);
  Strings all = gather_on_host(world_group, format_cpulist(current_cpus()) + "|" + near);
  const char* wish = std::getenv("XY_BIND");
  if (wish && std::string_view(wish) == "0") return false;
  std::vector<BindRequest> requests;
  for (const std::string& text : all) {
    size_t bar = text.find('|');
    requests.push_back({text.substr(0, bar), text.substr(bar + 1)});
  }
  return bind_process(choose_cpus(requests, world().local_rank, list_cores()));
}

void refuse_or_warn(const std::vector<RankInfo>& ranks) {
  std::string refusal;
  for (const LaunchProblem& p : check_launch(ranks)) {
    if (p.fatal)
      refusal += (refusal.empty() ? "" : "\n") + p.text;
    else if (world().rank == 0)
      std::fprintf(stderr, "xylem: warning: %s\n", p.text.c_str());
  }
  XY_CHECK(refusal.empty(), refusal);
}

void start_watchdog(const RunArgs& args, const std::vector<RankInfo>& ranks, const Group& world_group) {
  const World& w = world();
  const RankInfo& me = ranks[size_t(w.rank)];
  watchdog::Options o{.rank = w.rank,
                      .folder = watchdog::folder_of(args.folder),
                      .job = ranks[0].host + "." + std::to_string(ranks[0].pid) + "." +
                             std::to_string(std::chrono::system_clock::now().time_since_epoch().count()),
                      .timeout_seconds = args.timeout_seconds * (me.share_gpu ? 20 : 1)};
  if (w.rank == 0) watchdog::clear(o.folder);
  o.job = world_group.broadcast_string(o.job, 0);
  for (const RankInfo& r : ranks)
    o.peers.push_back(
        {.host = r.host, .pid = r.pid, .visible = r.boot_id == me.boot_id && r.pid_namespace == me.pid_namespace});
  watchdog::start(o);
}

std::string message_of(const std::exception_ptr& e,
                       const std::function<std::string(const std::exception&)>& describe = {}) {
  try {
    std::rethrow_exception(e);
  } catch (const std::exception& error) {
    return describe ? describe(error) : error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

// Exit codes are sorted by what a restart would do about them.
int exit_code_of(const std::exception_ptr& e) {
  try {
    std::rethrow_exception(e);
  } catch (const std::exception& error) {
    return needs_room_or_leave(error) ? watchdog::kStorageExitCode : 1;
  } catch (...) {
    return 1;
  }
}

// Ends the job. What goes wrong before the watchdog runs goes wrong on all ranks as a rule: the first speaks, the
// others wait until the launcher ends them.
[[noreturn]] void end_with_error(const std::string& message, int code) {
  int rank = launched_rank();
  if (!watchdog::running()) {
    if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    std::string prefix = rank >= 0 ? "rank " + std::to_string(rank) + ": " : "";
    std::fprintf(stderr, "xylem: %serror: %s\n", prefix.c_str(), message.c_str());
    watchdog::end_job(code);
  }
  watchdog::fail(message, code);
}

[[noreturn]] void at_terminate() {
  std::exception_ptr e = std::current_exception();
  end_with_error(e ? message_of(e) : "std::terminate was called", e ? exit_code_of(e) : 1);
}

}  // namespace

Run::Run(const RunArgs& args) { start(args, ""); }

Run::Run(int argc, char** argv, const RunArgs& args) {
  std::string arguments;
  for (int i = 1; i < argc; ++i) arguments += std::string(argv[i]) + '\n';
  start(args, arguments);
}

void Run::start(const RunArgs& args, const std::string& arguments) {
  exceptions_ = std::uncaught_exceptions();
  rng::seed(args.seed);
  const World& w = xylem::world();
  recorder::set_work_finished(false);
  if (w.launcher.empty()) {
    if (std::string hint = launcher_hint(); !hint.empty()) std::fprintf(stderr, "xylem: note: %s\n", hint.c_str());
    set_threads(args.threads);
    device_ = use(Device::parse(args.device));
    trace::start(args.trace, 0);
    return;
  }
  std::set_terminate(at_terminate);
  Group all = Group::world();
  Device chosen = choose_device(all, args.device);
  std::string pci = chosen.is_cuda() ? pci_of_gpu(chosen.index) : "";
  bool bound = bind_near(all, pci);
  if (args.threads > 0)
    set_threads(args.threads);
  else if (bound && !std::getenv("OMP_NUM_THREADS"))
    set_threads(int64_t(current_cpus().size()));
  device_ = use(chosen);

  RankInfo me = describe_this_process();
  me.device = device_.str();
  me.pci = pci;
  me.numa = chosen.is_cuda() ? numa_of_pci(pci) : std::optional<int>();
  if (int node = one_node(current_cpus()); !me.numa && node >= 0) me.numa = node;
  if (chosen.is_cuda()) me.gpu = gpus()[size_t(chosen.index)].name;
  me.nic = nearest_nic(pci);
  me.bound = bound;
  me.arguments = hash_text(arguments);
  me.config = hash_text(args.config);
  std::vector<RankInfo> ranks;
  for (const std::string& text : all.gather_strings(to_json(me))) ranks.push_back(parse_rank_info(text));
  if (std::any_of(ranks.begin(), ranks.end(), [&](const RankInfo& r) { return r.config != ranks[0].config; })) {
    Strings texts = all.gather_strings(args.config);
    for (RankInfo& r : ranks) r.config_text = texts[size_t(r.rank)];
  }
  report_ = launch_report(ranks);
  if (root()) {
    std::fputs(report_.c_str(), stdout);
    std::fflush(stdout);
  }
  refuse_or_warn(ranks);
  if (w.size > 1) {
    start_watchdog(args, ranks, all);
    watched_ = true;
  }
  all.barrier();  // the traces of all hosts count from here
  trace::start(args.trace, w.rank);
}

Run::~Run() {
  if (std::uncaught_exceptions() > exceptions_) {
    watchdog::expect_failure();
    return;
  }
  try {
    finish_trace();
    // Ranks that called different collectives have made garbage, even where nothing hung. The others may still be at
    // work, so the watchdog goes on until they are here.
    recorder::set_work_finished(true);
    recorder::Tag tag(recorder::kAtEnd);
    if (watched_)
      if (auto trouble = verify_replicas({}, Group::world())) watchdog::fail(*trouble);
  } catch (const std::exception& e) {
    if (watched_) watchdog::fail(e.what(), exit_code_of(std::current_exception()));
    std::fprintf(stderr, "xylem: error: %s\n", e.what());
  }
  if (watched_) watchdog::stop();
}

int guarded_main(const std::function<void()>& body, const std::function<std::string(const std::exception&)>& describe) {
  try {
    body();
    return 0;
  } catch (...) {
    std::string message = message_of(std::current_exception(), describe);
    int code = exit_code_of(std::current_exception());
    if (launched_rank() >= 0) end_with_error(message, code);
    std::fprintf(stderr, "xylem: error: %s\n", message.c_str());
    return code;
  }
}

}  // namespace xylem
