// SPDX-License-Identifier: Apache-2.0
#include "core/util/git_lfs.h"

#include <fstream>
#include <string_view>

#include "core/util/check.h"

namespace xylem {

bool is_git_lfs_pointer(const std::string& path) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  std::ifstream in(path, std::ios::binary);
  std::string begin(kBegin.size(), '\0');
  return in.read(begin.data(), std::streamsize(begin.size())) && begin == kBegin;
}

void refuse_git_lfs_pointer(const std::string& path) {
  XY_CHECK(!is_git_lfs_pointer(path), "'", path,
           "' is a Git LFS pointer, not the file itself: run `git lfs pull` in its repository");
}

}  // namespace xylem
