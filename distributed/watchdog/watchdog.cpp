// SPDX-License-Identifier: Apache-2.0
#include "distributed/watchdog/watchdog.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "core/util/file.h"
#include "core/util/file_error.h"
#include "distributed/group/control.h"
#include "distributed/watchdog/verdict.h"

namespace xylem::watchdog {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = 100ms;

// Of what the signal handlers may touch.
volatile std::sig_atomic_t terminate_asked = 0;
char crash_file[1024];
constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
struct sigaction before_crash[std::size(kCrashSignals)];

RankState process_state(int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!in || !std::getline(in, text)) return RankState::gone;
  size_t end = text.rfind(')');  // the name before it may hold anything
  char state = end != std::string::npos && end + 2 < text.size() ? text[end + 2] : '?';
  if (state == 'Z' || state == 'X') return RankState::gone;
  return state == 'T' || state == 't' ? RankState::stopped : RankState::answered;
}

// 0, or what went wrong (an errno).
int write_new(const fs::path& file, int flags, const std::string& text) {
  int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (fd < 0) return errno;
  errno = 0;
  int trouble = ::write(fd, text.data(), text.size()) == ssize_t(text.size()) ? 0 : errno != 0 ? errno : ENOSPC;
  if (::close(fd) != 0 && trouble == 0) trouble = errno;
  return trouble;
}

// The same. A reader sees all of it or nothing.
int write_whole(const fs::path& file, const std::string& text) {
  try {
    replace_file(file.string(), text);
    return 0;
  } catch (const std::exception& e) {
    return reason_of(e) != 0 ? reason_of(e) : EIO;
  }
}

void note_terminate(int) { terminate_asked = 1; }

// Leaves the name of the signal in a file, then lets the signal take its course.
void note_crash(int signal) {
  if (int file = ::open(crash_file, O_WRONLY | O_CREAT | O_TRUNC, 0644); file >= 0) {
    const char* name = sigabbrev_np(signal);
    char text[32] = "SIG";
    if (name) std::strncat(text, name, sizeof text - 4);
    if (::write(file, text, std::strlen(text)) < 0) ::close(file);
    ::close(file);
  }
  for (size_t i = 0; i < std::size(kCrashSignals); ++i)
    if (kCrashSignals[i] == signal) sigaction(signal, &before_crash[i], nullptr);
  ::raise(signal);
}

class Watchdog {
 public:
  explicit Watchdog(const Options& o) : o_(o), folder_(o.folder.empty() ? "." : o.folder) {
    install_handlers();
    thread_ = std::thread([this] { run(); });
  }
  ~Watchdog() {
    {
      std::lock_guard guard(lock_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
    restore_handlers();
  }

  void fail(const std::string& error, int code) {
    {
      std::lock_guard guard(lock_);
      if (error_.empty()) {
        error_ = error.empty() ? "an unknown error" : error;
        exit_code_ = code;
        tell(error_);
      }
    }
    wake_.notify_all();
  }
  void expect_failure() {
    std::lock_guard guard(lock_);
    failure_expected_at_ = Clock::now();
  }

 private:
  void install_handlers() {
    std::snprintf(crash_file, sizeof crash_file, "%s", signal_file(o_.rank).c_str());
    struct sigaction current {};
    // A program with a handler of its own for SIGTERM knows what to do; without one, the verdict comes first.
    sigaction(SIGTERM, nullptr, &current);
    if (current.sa_handler == SIG_DFL) {
      struct sigaction ours {};
      ours.sa_handler = note_terminate;
      ours.sa_flags = SA_RESTART;
      sigaction(SIGTERM, &ours, nullptr);
      terminate_handled_ = true;
    }
    for (size_t i = 0; i < std::size(kCrashSignals); ++i) {
      struct sigaction ours {};
      ours.sa_handler = note_crash;
      ours.sa_flags = SA_NODEFER;
      sigaction(kCrashSignals[i], &ours, &before_crash[i]);
    }
  }
  void restore_handlers() {
    if (terminate_handled_) std::signal(SIGTERM, SIG_DFL);
    for (size_t i = 0; i < std::size(kCrashSignals); ++i) sigaction(kCrashSignals[i], &before_crash[i], nullptr);
  }

  std::string dump_file(int rank) const { return (folder_ / ("hang_rank" + std::to_string(rank) + ".json")).string(); }
  std::string signal_file(int rank) const {
    return (folder_ / ("hang_rank" + std::to_string(rank) + ".signal")).string();
  }
  // Files that count by being there, which is all that a full disk takes, belong to this job by their name.
  fs::path mark(const std::string& name, const std::string& what = "") const {
    return folder_ / ("hang_" + name + "_" + std::to_string(std::hash<std::string>{}(o_.job + what)));
  }
  fs::path alarm_file() const { return mark("alarm"); }

  // An error goes to standard error before anything else: whatever the rest needs may be what is broken. What several
  // ranks have in common is told by the first of them.
  void tell(const std::string& error) const {
    if (write_new(mark("told", error), O_EXCL, "") == EEXIST) return;
    std::fprintf(stderr, "xylem: rank %d: error: %s\n", o_.rank, error.c_str());
  }

  void run() {
    std::unique_lock guard(lock_);
    while (!stop_) {
      wake_.wait_for(guard, kPoll, [this] { return stop_ || !error_.empty(); });
      if (stop_) return;
      guard.unlock();
      if (trouble()) end();
      if (terminate_asked && terminate_handled_) terminate();
      guard.lock();
    }
  }

  bool trouble() {
    if (std::string error = collectives::async_error(); !error.empty()) fail(error, 1);
    {
      std::lock_guard guard(lock_);
      if (failure_expected_at_ && Clock::now() > *failure_expected_at_ + 1s && error_.empty())
        error_ = "an exception, which nobody reported", exit_code_ = 1;
      if (!error_.empty()) return true;
    }
    look_at_peers();
    for (const auto& [rank, state] : peers_)
      if (state == RankState::gone) return true;
    std::error_code ignored;
    if (fs::exists(alarm_file(), ignored)) return true;
    int64_t since = recorder::oldest_unfinished_ns();
    if (since == 0 || double(recorder::now_ns() - since) * 1e-9 < o_.timeout_seconds) return false;
    timed_out_ = true;
    return true;
  }

  void look_at_peers() {
    peers_.clear();
    for (size_t r = 0; r < o_.peers.size(); ++r)
      if (o_.peers[r].visible && int(r) != o_.rank)
        if (RankState s = process_state(o_.peers[r].pid); s != RankState::answered) peers_[int(r)] = s;
  }

  // mpirun sends SIGTERM when a rank has died, and when the job is cancelled. In the first case the verdict is due;
  // in the second the others vanish by and by, which must not look like the first.
  void terminate() {
    for (int i = 0; i < 4; ++i) {
      if (i < 2 && trouble()) end();
      std::this_thread::sleep_for(kPoll);
    }
    std::signal(SIGTERM, SIG_DFL);
    ::kill(::getpid(), SIGTERM);
  }

  void write_dump() {
    RankDump& d = own_;
    d.rank = o_.rank;
    d.host = o_.peers[size_t(o_.rank)].host;
    d.pid = ::getpid();
    {
      std::lock_guard guard(lock_);
      d.error = error_;
      d.exit_code = exit_code_;
    }
    d.finished = recorder::work_finished();
    d.activity = recorder::current_activity();
    d.time_ns = recorder::now_ns();
    d.groups = recorder::groups();
    d.collectives = recorder::recent();
    d.peers = peers_;
    unwritable_ = write_whole(dump_file(o_.rank), to_json(d, o_.job));
  }

  std::optional<RankDump> read_dump(int rank) const {
    try {
      std::string text = read_file_if_any(dump_file(rank)).value_or("");
      if (!text.empty()) return parse_dump(text, o_.job);
    } catch (const std::exception&) {  // of another job, or not there yet
    }
    return {};
  }

  // Every rank's dump or, where there is none, what others see of it. True if no rank is silent.
  bool collect(std::vector<RankDump>& dumps) const {
    dumps.assign(o_.peers.size(), {});
    std::map<int, RankState> seen = peers_;
    bool complete = true;
    for (size_t r = 0; r < dumps.size(); ++r) {
      dumps[r].rank = int(r);
      dumps[r].state = RankState::silent;
      dumps[r].host = o_.peers[r].host;
      dumps[r].pid = o_.peers[r].pid;
      if (auto d = int(r) == o_.rank ? own_ : read_dump(int(r))) {
        dumps[r] = std::move(*d);
        for (const auto& [rank, state] : dumps[r].peers) seen[rank] = state;
      }
    }
    for (const auto& [rank, state] : seen) {
      RankDump& d = dumps[size_t(rank)];
      if (d.state == RankState::silent || state == RankState::gone) d.state = state;
      if (d.state == RankState::gone)
        if (std::string signal = read_file_if_any(signal_file(rank)).value_or(""); !signal.empty())
          d.error = "was ended by " + signal;
    }
    for (RankDump& d : dumps) {
      if (d.state != RankState::silent) continue;
      complete = false;
      if (unwritable_ != 0) d.unread = unwritten();
    }
    return complete;
  }
  std::string unwritten() const {
    return "'" + folder_.string() + "' cannot be written: " + std::strerror(unwritable_);
  }

  [[noreturn]] void end() {
    std::error_code ignored;
    fs::create_directories(folder_, ignored);
    write_dump();
    write_new(alarm_file(), 0, "");

    // Network file systems show a new file after a minute at worst. Where this rank cannot write, others cannot either.
    double patience = unwritable_ != 0 ? 1 : std::clamp(o_.timeout_seconds / 4, 3.0, 90.0);
    auto deadline = Clock::now() + std::chrono::milliseconds(int64_t(patience * 1e3));
    std::vector<RankDump> dumps;
    while (!collect(dumps) && Clock::now() < deadline) {
      std::this_thread::sleep_for(50ms);
      auto before = peers_;
      look_at_peers();
      if (peers_ != before) write_dump();
    }
    const std::string path = verdict_file(folder_.string());
    auto turn = Clock::now() + ranks_before(dumps) * 2s;
    while (Clock::now() < turn && (unwritable_ != 0 || !fs::exists(path, ignored))) std::this_thread::sleep_for(50ms);
    if (own_.error.empty()) write_dump();  // it may have failed since
    int claimed = write_new(path, O_EXCL, "");
    if (claimed == EEXIST && unwritable_ == 0) {
      std::this_thread::sleep_for(2s);  // the speaker ends the job
    } else {
      collect(dumps);
      std::string text = verdict(dumps);
      if (int trouble = write_new(path, O_TRUNC, text); trouble != 0) unwritable_ = trouble;
      for (const RankDump& d : dumps)
        if (d.state != RankState::answered && !read_dump(d.rank))
          try_replace_file(dump_file(d.rank), to_json(d, o_.job));
      speak(text);
    }
    end_job(exit_code(dumps));
  }

  // The lowest rank that answers speaks; the next ones wait, in case it ends before it has spoken. Where nobody can
  // write an answer, a rank that failed speaks before those that know nothing of it.
  int ranks_before(const std::vector<RankDump>& dumps) const {
    if (unwritable_ != 0) return own_.error.empty() ? o_.rank + 2 : std::min(o_.rank, 1);
    return int(std::count_if(dumps.begin(), dumps.begin() + o_.rank,
                             [](const RankDump& d) { return d.state == RankState::answered; }));
  }

  int exit_code(const std::vector<RankDump>& dumps) const {
    int code = 0;
    for (const RankDump& d : dumps) {
      if (d.state != RankState::answered && !(d.state == RankState::silent && unwritable_ != 0)) return kExitCode;
      code = std::max(code, d.exit_code);
    }
    return code != 0 ? code : kExitCode;
  }

  void speak(const std::string& text) {
    std::string message = timed_out_ ? "xylem: a collective did not finish within " + seconds(o_.timeout_seconds) + "\n"
                                     : "xylem: the job cannot go on\n";
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) message += "xylem: " + line + "\n";
    message += unwritable_ != 0 ? "xylem: nothing of this was kept: " + unwritten() + "\n"
                                : "xylem: what every rank recorded: " + (folder_ / "hang_rank*.json").string() + "\n";
    if (::write(STDERR_FILENO, message.data(), message.size()) < 0) return;
  }
  static std::string seconds(double s) {
    std::ostringstream text;
    text << s << " s";
    return text.str();
  }

  Options o_;
  fs::path folder_;
  std::thread thread_;
  std::mutex lock_;
  std::condition_variable wake_;
  bool stop_ = false, terminate_handled_ = false, timed_out_ = false;
  std::string error_;
  int exit_code_ = 0;  // that error_ asks for
  std::optional<Clock::time_point> failure_expected_at_;
  std::map<int, RankState> peers_;  // of this host, those that do not run
  RankDump own_;                    // what write_dump() wrote, or could not write
  int unwritable_ = 0;              // why not (an errno)
};

std::mutex instance_lock;
std::unique_ptr<Watchdog> instance;

}  // namespace

std::string folder_of(const std::string& folder) {
  const char* overruled = std::getenv("XY_HANG_DIR");
  return overruled && *overruled ? overruled : folder;
}
std::string verdict_file(const std::string& folder) { return (fs::path(folder) / "hang_verdict.txt").string(); }

void clear(const std::string& folder) {
  fs::path from = folder.empty() ? "." : folder, to = from / "earlier_hang";
  std::error_code ignored;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(from, ignored))
    if (entry.path().filename().string().starts_with("hang_")) files.push_back(entry.path());
  if (files.empty()) return;
  fs::remove_all(to, ignored);
  fs::create_directories(to, ignored);
  for (const fs::path& file : files) fs::rename(file, to / file.filename(), ignored);
}

void start(const Options& options) {
  std::lock_guard guard(instance_lock);
  instance.reset();
  instance = std::make_unique<Watchdog>(options);
}

void stop() {
  std::lock_guard guard(instance_lock);
  instance.reset();
}

bool running() {
  std::lock_guard guard(instance_lock);
  return instance != nullptr;
}

void expect_failure() {
  std::lock_guard guard(instance_lock);
  if (instance) instance->expect_failure();
}

void fail(const std::string& error, int code) {
  bool watched = false;
  {
    std::lock_guard guard(instance_lock);
    if (instance) {
      instance->fail(error, code);
      watched = true;
    }
  }
  if (watched) std::this_thread::sleep_for(150s);  // it ends the process
  std::fprintf(stderr, "xylem: error: %s\n", error.c_str());
  end_job(code);
}

}  // namespace xylem::watchdog
