// SPDX-License-Identifier: Apache-2.0
// Git LFS (https://git-lfs.com) leaves a small text in the place of a large file that was not fetched.
#pragma once
#include <string>

namespace xylem {

bool is_git_lfs_pointer(const std::string& path);  // false where there is no such file
// Throws, saying what to do, if the file is one.
void refuse_git_lfs_pointer(const std::string& path);

}  // namespace xylem
