// SPDX-License-Identifier: Apache-2.0
#include "models/loop/meter.h"

#include "core/autograd/autograd.h"
#include "core/device/allocator.h"
#include "core/util/text.h"

namespace xylem {

Meter::Meter(Device device, int64_t capacity, const Peak& peak)
    : device_(device), losses_(zeros({capacity}, f32, device)), norms_(zeros({capacity}, f32, device)), peak_(peak) {}

void Meter::add(const Tensor& loss, const Tensor& norm) {
  losses_.narrow(0, used_, 1).copy_(loss);
  norms_.narrow(0, used_, 1).copy_(norm);
  ++used_;
}

Window Meter::read(double stall, const Team& team) {
  NoGrad guard;
  Window w;
  w.losses = losses_.narrow(0, 0, used_).to_vector<float>();
  w.norms = norms_.narrow(0, 0, used_).to_vector<float>();
  w.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  w.stall = team.largest(stall - stall_before_);
  w.peak_memory = int64_t(team.largest(double(allocator(device_).stats().peak_allocated)));
  allocator(device_).reset_peak();
  used_ = 0;
  stall_before_ = stall;
  start_ = Clock::now();
  return w;
}

void Meter::pause() { paused_ = Clock::now(); }
void Meter::resume() { start_ += Clock::now() - paused_; }

std::optional<double> Meter::mfu(double seconds_per_step) const {
  if (peak_.flops == 0 || forward_flops_ == 0 || seconds_per_step <= 0) return {};
  return 3 * forward_flops_ / (seconds_per_step * peak_.flops);
}

std::string Meter::formula() const {
  std::string work = "3 x " + human_count(forward_flops_) +
                     "FLOP (forward, summed over the operations; backward counts "
                     "as two forwards, recomputation is not counted)";
  if (peak_.flops == 0) return "work per step: " + work + "; no MFU for " + peak_.name;
  return "mfu = " + work + " / (step time x " + human_count(peak_.flops) + "FLOP/s: " + peak_.name + ")";
}

}  // namespace xylem
