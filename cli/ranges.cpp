// SPDX-License-Identifier: Apache-2.0
#include "cli/ranges.h"

#include <cstdio>

#include "core/util/check.h"

namespace xylem::cli {

std::map<std::string, DimRange> parse_ranges(const std::vector<std::string>& texts) {
  std::map<std::string, DimRange> ranges;
  for (const std::string& text : texts) {
    size_t equals = text.find('=');
    long long min = 0, opt = 0, max = 0;
    int used = 0;
    bool numbers = equals != std::string::npos && equals > 0 &&
                   std::sscanf(text.c_str() + equals + 1, "%lld:%lld:%lld%n", &min, &opt, &max, &used) == 3 &&
                   equals + 1 + size_t(used) == text.size();
    XY_CHECK(numbers && min >= 0 && min <= opt && opt <= max, "--range '", text,
             "' is not NAME=MIN:OPT:MAX with ascending sizes, such as batch=1:8:64");
    ranges[text.substr(0, equals)] = {.min = min, .opt = opt, .max = max};
  }
  return ranges;
}

}  // namespace xylem::cli
