// SPDX-License-Identifier: Apache-2.0
#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/util/check.h"

namespace xylem::cli {
namespace {

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

int Supervisor::run(const std::vector<std::string>& command, int stop_with) {
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
  for (;;) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    int s = wait_for_signal(std::chrono::seconds(1));
    if (s != 0 && s != SIGCHLD) pass_on(child, stop_with);
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
