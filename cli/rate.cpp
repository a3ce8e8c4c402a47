// SPDX-License-Identifier: Apache-2.0
#include "cli/rate.h"

#include <charconv>

#include "core/util/check.h"

namespace xylem::cli {

double gigabytes_per_second(const std::string& option, const std::string& value) {
  double number = 0;
  const char* end = value.data() + value.size();
  auto [at, error] = std::from_chars(value.data(), end, number);
  std::string unit(at, end);
  unit.erase(0, unit.find_first_not_of(' ') == unit.npos ? unit.size() : unit.find_first_not_of(' '));
  if (error == std::errc() && unit.empty())
    XY_FAIL(option, " ", value, " says neither bits nor bytes: write ", option, " ", value, "Gb/s (", number / 8,
            " GB/s) or ", option, " ", value, "GB/s");
  const double scale = unit.empty() ? 0 : unit[0] == 'M' ? 1e-3 : unit[0] == 'G' ? 1 : unit[0] == 'T' ? 1e3 : 0;
  const std::string rest = unit.empty() ? "" : unit.substr(1);
  const bool bits = rest == "b/s" || rest == "bit/s" || rest == "bps", bytes = rest == "B/s";
  XY_CHECK(error == std::errc() && scale > 0 && (bits || bytes), option,
           " needs a rate with its unit, such as 400Gb/s or ", "50GB/s, not \"", value, "\"");
  XY_CHECK(number > 0 && number < 1e9, option, " must be more than nothing, not ", value);
  return number * scale / (bits ? 8 : 1);
}

}  // namespace xylem::cli
