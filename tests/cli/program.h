// SPDX-License-Identifier: Apache-2.0
// Runs the built `xylem` program as a user would.
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/tokens.h"
#include "tests/support.h"

namespace xylem::program {

namespace fs = std::filesystem;

inline std::string path() { return (fs::canonical("/proc/self/exe").parent_path() / "xylem").string(); }

inline Outcome xylem(const std::string& arguments) { return shell(path() + " " + arguments); }

// A program that goes on beside the test, its output in a file.
class Started {
 public:
  Started(const std::vector<std::string>& arguments, const fs::path& log) : log_(log) {
    pid_ = fork();
    if (pid_ != 0) return;
    if (!freopen(log.c_str(), "w", stdout)) _exit(98);
    dup2(STDOUT_FILENO, STDERR_FILENO);
    std::string program = path();
    std::vector<char*> words{program.data()};
    for (const std::string& a : arguments) words.push_back(const_cast<char*>(a.c_str()));
    words.push_back(nullptr);
    execv(program.c_str(), words.data());
    _exit(99);
  }
  ~Started() {
    if (pid_ > 0 && running()) kill(pid_, SIGKILL), wait();
  }
  Started(const Started&) = delete;

  pid_t pid() const { return pid_; }
  std::string text() const { return text_of(log_); }
  bool running() {
    if (code_ < 0) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) note(status);
    }
    return code_ < 0;
  }
  int wait() {
    int status = 0;
    if (code_ < 0 && waitpid(pid_, &status, 0) == pid_) note(status);
    return code_;
  }
  // False if the program ends, or half a minute passes, before it is so.
  template <class F>
  bool until(F&& so) {
    for (int i = 0; i < 30000; ++i) {
      if (so()) return true;
      if (!running()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  bool says(const std::string& words) {
    return until([&] { return text().find(words) != std::string::npos; });
  }

 private:
  void note(int status) { code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
  fs::path log_;
  pid_t pid_;
  int code_ = -1;
};

// Processes of the program that train with `config`, by rank; those of xylem run and mpirun are not among them.
inline std::map<int, pid_t> trainers(const std::string& config) {
  std::map<int, pid_t> found;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (fs::read_symlink(entry.path() / "exe", gone) != fs::path(path())) continue;
    std::string words = text_of(entry.path() / "cmdline"), environment = text_of(entry.path() / "environ");
    std::replace(words.begin(), words.end(), '\0', ' ');
    if (words.find(" train " + config) == std::string::npos) continue;
    const std::string key = "OMPI_COMM_WORLD_RANK=";
    size_t at = environment.find(key);
    found[at == std::string::npos ? 0 : std::stoi(environment.substr(at + key.size()))] = std::stoi(name);
  }
  return found;
}

// A GPT of a few thousand parameters on a few kilobytes of text: a step takes about a millisecond.
// XYLEM_TEST_DEVICE=cuda gives each rank a GPU.
inline void write_tiny_job(const fs::path& dir, const std::string& more = "") {
  const char* given = std::getenv("XYLEM_TEST_DEVICE");
  std::string device = given ? given : "cpu";
  fs::create_directories(dir);
  std::string text;
  for (int i = 0; i < 400; ++i) text += "And it came to pass on day " + std::to_string(i) + ".\n";
  write_byte_tokens(dir / "train.tokens", text);
  write_byte_tokens(dir / "val.tokens", text.substr(0, 2000));
  std::ofstream(dir / "tiny.toml") << "[run]\ndir = \"" << (dir / "run").string() << "\"\ndevice = \"" << device
                                   << "\"\n"
                                      "[model]\nname = \"gpt2\"\nvocab = 256\ncontext = 16\nlayers = 1\nheads = 2\n"
                                      "width = 16\ndropout = 0.1\n"
                                      "[data]\nkind = \"tokens\"\ntrain = \""
                                   << (dir / "train.tokens").string() << "\"\nval = \"" << (dir / "val.tokens").string()
                                   << "\"\n[ema]\ndecay = 0.9\n"
                                   << more;
}

inline fs::path checkpoint(const fs::path& run, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08lld", static_cast<long long>(step));
  return run / "checkpoints" / name;
}

// File name -> contents.
inline std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = text_of(entry.path());
  return files;
}

}  // namespace xylem::program
