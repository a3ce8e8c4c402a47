// SPDX-License-Identifier: Apache-2.0
#include "models/export/runtime/environment.h"

#include <dlfcn.h>

namespace xylem::runtime {
namespace {

namespace fs = std::filesystem;

// Folders that may hold the project's environment: where the source was, and above this library.
std::vector<fs::path> roots() {
  std::vector<fs::path> all{XY_SOURCE_DIR};
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&find_in_environment), &info) && info.dli_fname) {
    std::error_code error;
    for (fs::path p = fs::weakly_canonical(info.dli_fname, error).parent_path(); p.has_relative_path();
         p = p.parent_path())
      all.push_back(p);
  }
  return all;
}

}  // namespace

std::vector<fs::path> find_in_environment(const std::string& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::path& root : roots())
    for (const auto& python : fs::directory_iterator(root / ".venv" / "lib", error))
      for (const auto& file : fs::directory_iterator(python.path() / "site-packages" / folder, error))
        if (file.path().filename().string().starts_with(prefix)) found.push_back(file.path());
  return found;
}

}  // namespace xylem::runtime
