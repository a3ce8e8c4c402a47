// SPDX-License-Identifier: Apache-2.0
// Measures a training loop between reports. Losses and norms stay on the device until a report reads them all at once.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "models/loop/flops.h"
#include "models/loop/team.h"

namespace xylem {

// Figures of the steps since the last report.
struct Window {
  std::vector<float> losses, norms;  // one per step
  double seconds = 0, stall = 0;     // stall: seconds spent waiting for data
  int64_t peak_memory = 0;           // bytes
  double per_step() const { return losses.empty() ? 0 : seconds / double(losses.size()); }
};

class Meter {
 public:
  // Room for `capacity` steps between reports.
  Meter(Device device, int64_t capacity, const Peak& peak);

  void add(const Tensor& loss, const Tensor& norm);  // of a step, one number each
  int64_t pending() const { return used_; }
  bool full() const { return used_ == losses_.numel(); }
  // Waits for the device, returns the figures and starts anew. `stall` is the loader's total so far. Collective over
  // the team, whose ranks all know the loss: stall and memory are those of the worst.
  Window read(double stall, const Team& team = Team(Group()));
  // Time between pause and resume belongs to no window: evaluation, checkpoints.
  void pause();
  void resume();

  // Forward FLOPs of a whole step; backward counts twice as much.
  void set_forward_flops(double flops) { forward_flops_ = flops; }
  std::optional<double> mfu(double seconds_per_step) const;
  std::string formula() const;  // in words, with the numbers in it

 private:
  using Clock = std::chrono::steady_clock;
  Device device_;
  Tensor losses_, norms_;  // f32 [capacity]
  int64_t used_ = 0;
  Peak peak_;
  double forward_flops_ = 0, stall_before_ = 0;
  Clock::time_point start_ = Clock::now(), paused_{};
};

}  // namespace xylem
