// SPDX-License-Identifier: Apache-2.0
#include "models/nn/init.h"

#include <cmath>

#include "core/autograd/autograd.h"
#include "models/nn/lazy.h"
#include "ops/ops.h"

namespace xylem::init {
namespace {
thread_local Device current_device;
thread_local bool current_skip = false, shapes_only = false;
}  // namespace

DeviceScope::DeviceScope(Device device) : previous_(std::exchange(current_device, device)) {}
DeviceScope::~DeviceScope() { current_device = previous_; }
Device device() { return current_device; }

SkipScope::SkipScope() : previous_(std::exchange(current_skip, true)) {}
SkipScope::~SkipScope() { current_skip = previous_; }
bool detail::skips() { return current_skip || shapes_only; }

ShapesScope::ShapesScope() : previous_(std::exchange(shapes_only, true)) {}
ShapesScope::~ShapesScope() { shapes_only = previous_; }

Tensor weight(const Shape& shape) {
  if (!shapes_only) return empty(shape, f32, current_device);
  return lazy_tensor(shape, f32, [shape] { return empty(shape, f32); });
}

void uniform(const Tensor& t, double bound) {
  if (shapes_only) return;
  NoGrad guard;
  uniform_(t, -bound, bound);
}

void normal(const Tensor& t, double stddev) {
  if (shapes_only) return;
  NoGrad guard;
  normal_(t, 0, stddev);
}

void constant(const Tensor& t, double value) {
  if (shapes_only) return;
  NoGrad guard;
  t.fill_(value);
}

void kaiming_fan_out(const Tensor& weight) {
  double fan_out = double(weight.numel()) / double(weight.size(1));
  normal(weight, std::sqrt(2 / fan_out));
}

}  // namespace xylem::init
