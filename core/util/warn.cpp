// SPDX-License-Identifier: Apache-2.0
#include "core/util/warn.h"

#include <cstdio>
#include <mutex>
#include <set>

namespace xylem {

void warn_once(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> told;
  std::lock_guard lock(mutex);
  if (told.insert(text).second) std::fprintf(stderr, "xylem: warning: %s\n", text.c_str());
}

}  // namespace xylem
