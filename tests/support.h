// SPDX-License-Identifier: Apache-2.0
// What tests of several folders share.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/util/check.h"
#include "core/util/file.h"

namespace xylem {

// What the error that f throws says.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// A folder of this test alone. It goes with the test, unless that failed: then there may be something to see in it.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "xylem-XXXXXX").string();
    XY_CHECK(mkdtemp(pattern.data()), "cannot make a folder like ", pattern);
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    if (::testing::Test::HasFailure())
      std::printf("kept: %s\n", path_.c_str());
    else
      std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Outcome {
  int code;
  std::string text;  // standard output and error
};
inline Outcome shell(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  Outcome o;
  char block[4096];
  for (size_t n; (n = fread(block, 1, sizeof block, pipe)) > 0;) o.text.append(block, n);
  int status = pclose(pipe);
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return o;
}

// What a file holds that may not be there (yet): "" then.
inline std::string text_of(const std::string& path) { return read_file_if_any(path).value_or(""); }

}  // namespace xylem
