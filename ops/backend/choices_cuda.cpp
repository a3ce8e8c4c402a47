// SPDX-License-Identifier: Apache-2.0
#include "ops/backend/choices.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "core/device/graph.h"
#include "core/device/info.h"

namespace xylem::cuda {

bool worth_timing(double flops) { return flops >= 2e9; }

bool may_time(Device device) {
  static const char* set = std::getenv("XY_KERNEL_TIMING");
  static const bool allowed = !set || std::string_view(set) != "0";
  return allowed && !capturing(device);
}

CacheFile& kept_choices(const std::string& library, Device device) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, std::unique_ptr<CacheFile>> files;
  std::lock_guard lock(mutex);
  auto& file = files[{library, device.index}];
  if (!file) {
    std::string name = library + "-" + gpus().at(size_t(device.index)).name;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !std::isalnum(uint8_t(c)) && c != '-'; }, '_');
    file = std::make_unique<CacheFile>(name);
  }
  return *file;
}

std::optional<float> time_of(Device device, float best, const std::function<bool()>& enqueue) {
  constexpr int kRepeats = 3;
  const Stream stream = current_stream(device);
  Event begin(true), end(true);
  float shortest = INFINITY;
  for (int i = 0; i <= kRepeats; ++i) {
    begin.record(stream);
    if (!enqueue()) return {};
    end.record(stream);
    end.synchronize();
    const float ms = end.elapsed_ms(begin);
    if (i > 0) shortest = std::min(shortest, ms);
    if (ms > 2 * best && ms > 0.1f) return ms;
  }
  return shortest;
}

}  // namespace xylem::cuda
