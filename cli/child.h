// SPDX-License-Identifier: Apache-2.0
// A program that runs under supervision: signals to this process reach it in an orderly way.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace xylem::cli {

// While it lives, SIGINT, SIGTERM and SIGUSR1 do not end this process; they are noted and handed on by run().
class Supervisor {
 public:
  Supervisor();
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;

  // Runs a program in a process group of its own and returns its exit code, 128 + n if signal n ended it. The first
  // signal is handed on as `stop_with`, a second one as SIGTERM, a third as SIGKILL to the whole group. Once `given_up`
  // says an exit code, the program has a few seconds to end with.
  int run(const std::vector<std::string>& command, int stop_with,
          const std::function<std::optional<int>()>& given_up = {});
  // False if a signal ended it early.
  bool sleep(std::chrono::duration<double> time);
  bool stopping() const { return signals_ > 0; }

 private:
  void pass_on(pid_t child, int stop_with);
  int signals_ = 0;
};

}  // namespace xylem::cli
