// SPDX-License-Identifier: Apache-2.0
#include "models/loop/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/util/file.h"
#include "core/util/file_error.h"
#include "distributed/launch/rank_info.h"
#include "distributed/watchdog/watchdog.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// A process, told apart from all others of all hosts and times.
struct Holder {
  std::string host, boot, pid_namespace, began;
  int64_t pid = 0, begun_ticks = 0;  // clock ticks from the boot to its start

  std::string name() const { return detail::concat("process ", pid, " on ", host, ", which began on ", began); }
};

// Field 22 of /proc/<pid>/stat; 0 if there is no such process, or a dead one.
int64_t start_ticks(int64_t pid) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (!file) return 0;
  char text[2048] = "";
  size_t bytes = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  std::string stat(text, bytes);
  size_t end = stat.rfind(')');  // the name before it may hold anything
  char state = 0;
  long long ticks = 0;
  if (end == std::string::npos ||
      std::sscanf(stat.c_str() + end + 1,
                  " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld", &state,
                  &ticks) != 2 ||
      state == 'Z' || state == 'X')
    return 0;
  return ticks;
}

std::string now_text() {
  char text[64] = "";
  std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(text, sizeof text, "%F %T", localtime_r(&now, &local));
  return text;
}

Holder this_process() {
  RankInfo me = describe_this_process();
  return {.host = me.host,
          .boot = me.boot_id,
          .pid_namespace = me.pid_namespace,
          .began = now_text(),
          .pid = ::getpid(),
          .begun_ticks = start_ticks(::getpid())};
}

std::string to_text(const Holder& h) {
  return nlohmann::ordered_json{{"host", h.host},
                                {"pid", h.pid},
                                {"began", h.began},
                                {"boot", h.boot},
                                {"pid_namespace", h.pid_namespace},
                                {"ticks", h.begun_ticks},
                                {"taken", Clock::now().time_since_epoch().count()}}
             .dump(1) +
         "\n";
}

std::optional<Holder> parse_holder(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    return Holder{.host = json.at("host"),
                  .boot = json.at("boot"),
                  .pid_namespace = json.at("pid_namespace"),
                  .began = json.at("began"),
                  .pid = json.at("pid"),
                  .begun_ticks = json.at("ticks")};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

// When the file was touched, by the clock of its file system. Opening it makes a network file system look anew.
std::optional<timespec> touched(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  struct stat info {};
  bool ok = ::fstat(fd, &info) == 0;
  ::close(fd);
  return ok ? std::optional(info.st_mtim) : std::nullopt;
}
bool same(const std::optional<timespec>& a, const std::optional<timespec>& b) {
  return a && b ? a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec : a.has_value() == b.has_value();
}

// Gives a file that holds `text` the name `path`, if nothing has that name: 0, or an errno. A hard link does so at
// once, on network file systems too; some file systems have none.
int claim(const std::string& own, const std::string& path, const std::string& text) {
  if (::link(own.c_str(), path.c_str()) == 0) return 0;
  if (errno == EEXIST)
    return read_file_if_any(path) == text ? 0 : EEXIST;  // the answer to a link that was made may be lost
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  bool whole = ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  int reason = whole ? 0 : errno;
  ::close(fd);
  if (!whole) ::unlink(path.c_str());
  return reason;
}

// Whether the holder of a lock lives. Of another host nothing can be seen but its touches of the file.
bool lives(const Holder& holder, const Holder& me, const std::string& path, double patience) {
  if (holder.boot == me.boot && holder.pid_namespace == me.pid_namespace) {
    if (::kill(pid_t(holder.pid), 0) != 0) return errno == EPERM;
    return start_ticks(holder.pid) == holder.begun_ticks;
  }
  auto first = touched(path);
  for (auto end = Clock::now() + Seconds(patience); Clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min<int64_t>(500, 1 + int64_t(patience * 50))));
    if (!same(touched(path), first)) return true;
  }
  return false;
}

}  // namespace

RunLock::RunLock(const std::string& folder, const RunLockOptions& options) : path_(folder + "/lock") {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw FileError("cannot make the run's folder '" + folder + "': " + failed.message(), failed.value());
  const Holder me = this_process();
  text_ = to_text(me);
  const std::string own = path_ + "." + me.host + "." + std::to_string(me.pid);
  replace_file(own, text_);
  struct Cleanup {
    const std::string& file;
    ~Cleanup() { ::unlink(file.c_str()); }
  } cleanup{own};
  int unreadable = 0;
  while (int reason = claim(own, path_, text_)) {
    if (reason != EEXIST) cannot_write(path_, reason);
    const auto theirs = read_file_if_any(path_);
    if (!theirs) continue;  // it went in between
    const auto holder = parse_holder(*theirs);
    if (!holder) {  // it may be in the middle of being written
      XY_CHECK(++unreadable < 20, "'", path_, "' is not a lock that Xylem wrote; remove it to use the run");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    XY_CHECK(!lives(*holder, me, path_, options.patience), "another job has the run '", folder, "': ", holder->name(),
             "; give this one another run.dir, or wait until that one ends. If it is no more, remove '", path_, "'");
    // Of several that find it left over one takes it away, and none the lock of who was faster.
    const std::string away = own + ".old";
    if (::rename(path_.c_str(), away.c_str()) != 0) continue;
    if (read_file_if_any(away) == theirs)
      note_ = "took over the run from " + holder->name() + " and is no more";
    else if (::link(away.c_str(), path_.c_str()) != 0)
      cannot_write(path_);
    ::unlink(away.c_str());
  }
  heart_ = std::thread([this, beat = options.beat] { keep_alive(beat); });
}

RunLock::~RunLock() {
  {
    std::lock_guard guard(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  heart_.join();
  if (mine()) ::unlink(path_.c_str());
}

bool RunLock::mine() const { return read_file_if_any(path_) == text_; }

// Whoever was thought dead (its host was suspended, its network was gone) must not go on beside who took its place.
void RunLock::keep_alive(double beat) {
  std::unique_lock guard(mutex_);
  while (!wake_.wait_for(guard, Seconds(beat), [this] { return done_; })) {
    const auto now = read_file_if_any(path_);
    if (auto holder = now && *now != text_ ? parse_holder(*now) : std::nullopt)
      watchdog::fail("the run was taken over by " + holder->name());
    if (now) ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
  }
}

}  // namespace xylem
