// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace xylem {

// Whether every operation must give the same bits on every run, which is the default. Off allows kernels that are
// faster because they add in whatever order threads arrive: the backward pass of cuDNN's attention.
bool deterministic();
void set_deterministic(bool on);

}  // namespace xylem
