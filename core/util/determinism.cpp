// SPDX-License-Identifier: Apache-2.0
#include "core/util/determinism.h"

#include <atomic>

namespace xylem {
namespace {
std::atomic<bool> on{true};
}

bool deterministic() { return on; }
void set_deterministic(bool value) { on = value; }

}  // namespace xylem
