// SPDX-License-Identifier: Apache-2.0
#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "core/util/check.h"

namespace xylem::cli {
namespace {

constexpr auto kCleanUp = std::chrono::seconds(10);

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&set, s);
  return set;
}

// The next watched signal, or 0 after `time`.
int wait_for_signal(std::chrono::duration<double> time) {
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  timespec limit{time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
  sigset_t set = watched();
  int s = sigtimedwait(&set, nullptr, &limit);
  return s > 0 ? s : 0;
}

// Open MPI 4.1 with PMIx 4.2 now and then deadlocks in mpirun itself once all ranks have ended: it leaves them zombies.
// The exit codes of a process's children if they all are, the first that is not 0; nothing otherwise.
std::optional<int> code_of_zombies(pid_t parent) {
  namespace fs = std::filesystem;
  std::optional<int> code;
  std::error_code gone;
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(parent) + "/task", gone)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child; children >> child;) {
      std::ifstream file("/proc/" + std::to_string(child) + "/stat");
      std::string stat((std::istreambuf_iterator<char>(file)), {});
      std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 2)));  // state is the 3rd field
      std::string state, field;
      fields >> state;
      if (state != "Z") return {};
      for (int i = 4; i <= 52; ++i) fields >> field;  // exit_code, as waitpid gives it
      int status = std::atoi(field.c_str());
      if (code.value_or(0) == 0) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
  }
  return code;
}

}  // namespace

Supervisor::Supervisor() {
  sigset_t set = watched();
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

Supervisor::~Supervisor() {
  sigset_t set = watched();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void Supervisor::pass_on(pid_t child, int stop_with) {
  if (++signals_ == 1)
    kill(child, stop_with);
  else if (signals_ == 2)
    kill(child, SIGTERM);
  else
    kill(-child, SIGKILL);
}

int Supervisor::run(const std::vector<std::string>& command, int stop_with,
                    const std::function<std::optional<int>()>& given_up) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  pid_t parent = getpid(), child = fork();
  XY_CHECK(child >= 0, "cannot start another process: ", std::strerror(errno));
  if (child == 0) {
    setpgid(0, 0);  // Ctrl-C reaches the supervisor alone
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    sigset_t set = watched();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    if (int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
    execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "xylem: cannot run '%s': %s\n", arguments[0], std::strerror(errno));
    _exit(127);
  }
  setpgid(child, child);
  auto last_alive = std::chrono::steady_clock::now();
  for (;;) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    int s = wait_for_signal(std::chrono::seconds(1));
    if (s != 0 && s != SIGCHLD) pass_on(child, stop_with);
    auto code = code_of_zombies(child);
    if (!code && given_up) code = given_up();
    auto now = std::chrono::steady_clock::now();
    if (!code) last_alive = now;
    if (now - last_alive < kCleanUp) continue;
    std::fprintf(stderr, "xylem: '%s' does not end although the job has\n", arguments[0]);
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
    return *code;
  }
}

bool Supervisor::sleep(std::chrono::duration<double> time) {
  auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    auto left = std::chrono::duration<double>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return true;
    int s = wait_for_signal(left);
    if (s == 0 || s == SIGCHLD) continue;
    ++signals_;
    return false;
  }
}

}  // namespace xylem::cli
