// SPDX-License-Identifier: Apache-2.0
#include "distributed/topology/cpulist.h"

#include <algorithm>
#include <charconv>

namespace xylem {

std::optional<std::vector<int>> parse_cpulist(std::string_view text) {
  constexpr int kMost = 65536;  // more CPUs than any machine has; bounds what a malformed range may cost
  std::vector<int> cpus;
  auto number = [&](int& value) {
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0 || value >= kMost) return false;
    text.remove_prefix(size_t(end - text.data()));
    return true;
  };
  while (!text.empty()) {
    int first = 0, last = 0;
    if (!number(first)) return std::nullopt;
    last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!number(last) || last < first) return std::nullopt;
    }
    for (int c = first; c <= last; ++c) cpus.push_back(c);
    if (cpus.size() > kMost) return std::nullopt;
    if (text.empty()) break;
    if (!text.starts_with(',')) return std::nullopt;
    text.remove_prefix(1);
    if (text.empty()) return std::nullopt;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string format_cpulist(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t j = i;
    while (j + 1 < cpus.size() && cpus[j + 1] <= cpus[j] + 1) ++j;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[i]);
    if (cpus[j] > cpus[i]) text += '-' + std::to_string(cpus[j]);
    i = j + 1;
  }
  return text;
}

std::string common_cpus(const std::string& a, const std::string& b) {
  std::vector<int> x = parse_cpulist(a).value_or(std::vector<int>{}), y = parse_cpulist(b).value_or(std::vector<int>{}),
                   both;
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
  return format_cpulist(both);
}

}  // namespace xylem
