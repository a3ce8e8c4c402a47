// SPDX-License-Identifier: Apache-2.0
#include "models/nn/init.h"

#include <cmath>

#include "core/autograd/autograd.h"
#include "ops/ops.h"

namespace xylem::init {
namespace {
thread_local Device current_device;
thread_local bool current_skip = false;
}  // namespace

DeviceScope::DeviceScope(Device device) : previous_(std::exchange(current_device, device)) {}
DeviceScope::~DeviceScope() { current_device = previous_; }
Device device() { return current_device; }

SkipScope::SkipScope() : previous_(std::exchange(current_skip, true)) {}
SkipScope::~SkipScope() { current_skip = previous_; }
bool detail::skips() { return current_skip; }

void uniform(const Tensor& t, double bound) {
  NoGrad guard;
  uniform_(t, -bound, bound);
}

void normal(const Tensor& t, double stddev) {
  NoGrad guard;
  normal_(t, 0, stddev);
}

void constant(const Tensor& t, double value) {
  NoGrad guard;
  t.fill_(value);
}

void kaiming_fan_out(const Tensor& weight) {
  double fan_out = double(weight.numel()) / double(weight.size(1));
  normal(weight, std::sqrt(2 / fan_out));
}

}  // namespace xylem::init
