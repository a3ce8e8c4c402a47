// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/grad_mode.h"

#include <utility>

namespace xylem::detail {
namespace {
thread_local GradMode current = GradMode::on;
}

GradMode grad_mode() { return current; }
GradModeScope::GradModeScope(GradMode mode) : previous_(std::exchange(current, mode)) {}
GradModeScope::~GradModeScope() { current = previous_; }

}  // namespace xylem::detail
