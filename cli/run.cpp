// SPDX-License-Identifier: Apache-2.0
// `xylem run`: starts a job of several ranks, watches it, and starts it again from the last good checkpoint.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "cli/child.h"
#include "cli/commands.h"
#include "core/util/check.h"
#include "core/util/text.h"
#include "distributed/watchdog/watchdog.h"
#include "models/checkpoint/checkpoint.h"
#include "models/train/config.h"

namespace xylem::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string config;
  std::vector<std::string> overrides, mpirun_options;
  int ranks = 1, restarts = 0;
  bool elastic = false, fresh = false;
  double backoff = 1;
  std::string mpirun = "mpirun";
};

constexpr double kLongestPause = 60;

bool given(const std::vector<std::string>& options, std::initializer_list<const char*> names) {
  return std::any_of(options.begin(), options.end(),
                     [&](const std::string& o) { return std::find(names.begin(), names.end(), o) != names.end(); });
}

int cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// What Open MPI must be told in the environment; a setting of the user's wins.
void prepare_open_mpi(const Arguments& a) {
  auto set = [](const char* name, const char* value) { setenv(name, value, 0); };
  if (geteuid() == 0) {
    set("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");  // containers forbid it
  }
  if (a.ranks > cpus() && !given(a.mpirun_options, {"--hostfile", "--machinefile", "--host", "-H"})) {
    set("OMPI_MCA_rmaps_base_oversubscribe", "1");
    set("OMPI_MCA_mpi_yield_when_idle", "1");
  }
}

class Job {
 public:
  explicit Job(Arguments a) : a_(std::move(a)), config_(load_config(a_.config, a_.overrides)), ranks_(a_.ranks) {
    check_split();
  }
  int run();

 private:
  void check_split() const;
  bool divides(int ranks) const;
  int fewer_ranks() const;  // the largest number below the present one that shares the batch; 0: none
  std::vector<std::string> command(bool first) const;
  std::string again() const;
  std::optional<int64_t> newest() const;
  // The trainer rewrites config.toml once all ranks are up and the checkpoint is read.
  fs::file_time_type began_mark() const { return written(fs::path(config_.run.dir) / "config.toml"); }
  // The watchdog's. A mpirun whose hosts do not answer waits for them for minutes after it.
  fs::file_time_type verdict_mark() const {
    return written(watchdog::verdict_file(watchdog::folder_of(config_.run.dir)));
  }
  static fs::file_time_type written(const fs::path& file) {
    std::error_code missing;
    auto time = fs::last_write_time(file, missing);
    return missing ? fs::file_time_type::min() : time;
  }
  template <class... Parts>
  static void say(const Parts&... parts) {
    std::printf("xylem run: %s\n", detail::concat(parts...).c_str());
    std::fflush(stdout);
  }

  Arguments a_;
  TrainConfig config_;
  int ranks_;
};

bool Job::divides(int ranks) const {
  int64_t all = config_.train.global_batch, micro = config_.train.micro_batch;
  return all % ranks == 0 && (micro == 0 || all / ranks % micro == 0);
}

void Job::check_split() const {
  XY_CHECK(divides(ranks_), ranks_, " ranks cannot share train.global_batch = ", config_.train.global_batch, " evenly",
           config_.train.micro_batch > 0 ? " in micro-batches of " + std::to_string(config_.train.micro_batch)
                                         : std::string());
}

int Job::fewer_ranks() const {
  int n = ranks_ - 1;
  while (n > 0 && !divides(n)) --n;
  return n;
}

std::optional<int64_t> Job::newest() const {
  auto steps = Checkpoints(config_.run.dir, 0).steps();
  return steps.empty() ? std::nullopt : std::optional(steps.back());
}

std::vector<std::string> Job::command(bool first) const {
  std::vector<std::string> words;
  if (ranks_ > 1) {
    words = {a_.mpirun, "-np", std::to_string(ranks_)};
    if (!given(a_.mpirun_options, {"--bind-to", "-bind-to"})) words.insert(words.end(), {"--bind-to", "none"});
    words.insert(words.end(), a_.mpirun_options.begin(), a_.mpirun_options.end());
  }
  words.insert(words.end(), {fs::read_symlink("/proc/self/exe").string(), "train", a_.config});
  for (const std::string& o : a_.overrides) words.insert(words.end(), {"--set", o});
  if (config_.checkpoint.memory == "auto") words.insert(words.end(), {"--set", "checkpoint.memory=shared"});
  if (first && a_.fresh) words.push_back("--fresh");
  return words;
}

std::string Job::again() const {
  std::string text = "xylem run -np " + std::to_string(a_.ranks) + " --restarts " + std::to_string(a_.restarts) +
                     (a_.elastic ? " --elastic " : " ") + quoted(a_.config);
  for (const std::string& o : a_.overrides) text += " --set " + quoted(o);
  for (size_t i = 0; i < a_.mpirun_options.size(); ++i) text += (i ? " " : " -- ") + quoted(a_.mpirun_options[i]);
  return text;
}

std::string what_happened(int code) {
  if (code == kStopped) return "the job was told to stop, by others than this command, and saved a checkpoint";
  if (code == 127) return "the job could not be started";
  if (code == watchdog::kStorageExitCode)
    return "the job could not write its files: no room, or no leave (the error above names the file)";
  if (code > 128 && code < 128 + 65) {
    int s = code - 128;
    std::string name = detail::concat("signal ", s, " (", strsignal(s), ")");
    return "a process of the job was ended by " + name + (s == SIGKILL ? ", perhaps for want of memory" : "");
  }
  return "the job failed with code " + std::to_string(code);
}

int Job::run() {
  if (ranks_ > 1) prepare_open_mpi(a_);
  Supervisor supervisor;
  double pause = a_.backoff;
  for (int attempt = 0;; ++attempt) {
    auto mark = began_mark(), verdict = verdict_mark();
    auto given_up = [&]() -> std::optional<int> {
      auto now = verdict_mark();
      return now != verdict && now != fs::file_time_type::min() ? std::optional(watchdog::kExitCode) : std::nullopt;
    };
    auto start = std::chrono::steady_clock::now();
    int code = supervisor.run(command(attempt == 0), ranks_ > 1 ? SIGUSR1 : SIGTERM, given_up);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (code == 0) {
      if (attempt > 0) say("finished after ", attempt, attempt == 1 ? " restart" : " restarts");
      return 0;
    }
    auto step = newest();
    std::string saved = step ? "the newest checkpoint is of step " + std::to_string(*step) : "nothing was saved yet";
    if (supervisor.stopping()) {
      say("stopped", code == kStopped ? "; " : detail::concat(" without saving: ", what_happened(code), "; "), saved,
          "\nto go on: ", again());
      return code;
    }
    bool began = began_mark() != mark;
    say(what_happened(code), ", after ", human_time(seconds), began ? "" : " and before it began to train", "; ",
        saved);
    if (code == watchdog::kStorageExitCode) {
      say("a restart would meet the same; when there is room, go on with: ", again());
      return code;
    }
    if (attempt == a_.restarts) {
      if (a_.restarts > 0) say("no restart is left of ", a_.restarts);
      return code;
    }
    if (a_.elastic && !began && attempt > 0) {
      if (int n = fewer_ranks(); n > 0) {
        say(ranks_, " ranks do not start again: going on with ", n, " and the same global batch");
        ranks_ = n;
      }
    }
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", pause);
    say("restart ", attempt + 1, " of ", a_.restarts, " with ", ranks_, ranks_ == 1 ? " rank" : " ranks", " in ", text,
        " s");
    if (!supervisor.sleep(std::chrono::duration<double>(pause))) {
      say("stopped; ", saved, "\nto go on: ", again());
      return kStopped;
    }
    pause = began ? a_.backoff : std::min(2 * pause, kLongestPause);
  }
}

}  // namespace

void add_run_command(CLI::App& app, const std::vector<std::string>& mpirun_options) {
  auto a = std::make_shared<Arguments>();
  a->mpirun_options = mpirun_options;
  CLI::App* cmd = app.add_subcommand(
      "run", "Train on several ranks and start again from the last good checkpoint when one of them dies");
  cmd->add_option("CONFIG", a->config, "configuration file, as for `xylem train`")->required();
  cmd->add_option("-n,--np", a->ranks, "ranks; 1 starts no mpirun")->check(CLI::PositiveNumber)->capture_default_str();
  cmd->add_option("--restarts", a->restarts, "how often to start again")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  cmd->add_flag("--elastic", a->elastic, "go on with fewer ranks when the same number does not start again");
  cmd->add_flag("--fresh", a->fresh, "start over; an earlier run in the same folder is moved aside");
  cmd->add_option("--set", a->overrides, "override a key of the configuration; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  cmd->add_option("--backoff", a->backoff, "seconds before the first restart; doubled while the job does not begin")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  cmd->add_option("--mpirun", a->mpirun, "the mpirun to use")->capture_default_str();
  cmd->footer("What follows -- goes to mpirun: xylem run -np 16 job.toml -- --hostfile hosts");
  cmd->callback([a] {
    if (int code = Job(*a).run()) throw Exit{code};
  });
}

}  // namespace xylem::cli
