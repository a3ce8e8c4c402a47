// SPDX-License-Identifier: Apache-2.0
#include "core/util/text.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace xylem {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

}  // namespace

std::string human_count(double v) {
  if (v < 1000) return format(v < 10 ? "%.2f" : "%.0f", v);
  const char* unit = "kMGTPE";
  for (v /= 1000; v >= 999.5 && unit[1]; v /= 1000) ++unit;
  return format(v < 99.95 ? "%.1f%c" : "%.0f%c", v, *unit);
}

std::string human_bytes(double v) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int i = 0;
  for (; v >= 999.5 && i < 6; v /= 1024) ++i;
  return format("%.3g %s", v, units[i]);
}

std::string human_time(double seconds) {
  int64_t s = std::isfinite(seconds) && seconds > 0 ? std::llround(seconds) : 0;
  if (s >= 3600) return format("%d:%02d:%02d", int(s / 3600), int(s / 60 % 60), int(s % 60));
  return format("%d:%02d", int(s / 60), int(s % 60));
}

}  // namespace xylem
