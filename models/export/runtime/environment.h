// SPDX-License-Identifier: Apache-2.0
// Where libraries that are loaded at run time may lie: pip packages in the project's .venv.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace xylem::runtime {

// Files of the pip packages in .venv (scripts/setup.sh) whose names begin with `prefix`, in the package's `folder`
// ("onnxruntime/capi"): beside the sources, and beside or above the library that is running.
std::vector<std::filesystem::path> find_in_environment(const std::string& folder, const std::string& prefix);

}  // namespace xylem::runtime
