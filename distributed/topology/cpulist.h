// SPDX-License-Identifier: Apache-2.0
// Lists of CPUs as Linux writes them: "0-3,8".
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xylem {

std::optional<std::vector<int>> parse_cpulist(std::string_view text);  // ascending; nullopt: malformed
std::string format_cpulist(std::vector<int> cpus);
std::string common_cpus(const std::string& a, const std::string& b);  // the cpulist of those in both

}  // namespace xylem
