// SPDX-License-Identifier: Apache-2.0
// Where new layers live and what they hold at first.
#pragma once
#include <utility>

#include "core/tensor/tensor.h"

namespace xylem::init {

// Layers made inside the scope live on `device` from the start, which spares drawing and copying them elsewhere. They
// hold the same numbers as on the CPU.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;

 private:
  Device previous_;
};
Device device();  // where new layers go: the CPU outside every scope

// Random weights of layers made inside the scope are left undrawn, for models that draw all of them themselves.
class SkipScope {
 public:
  SkipScope();
  ~SkipScope();
  SkipScope(const SkipScope&) = delete;

 private:
  bool previous_;
};
template <class F>
auto skipping(F&& make) {
  SkipScope scope;
  return make();
}

// None of these is recorded.
void uniform(const Tensor& t, double bound);  // in +-bound
void normal(const Tensor& t, double stddev);
void constant(const Tensor& t, double value);
// He et al. 2015 for a convolution weight [out, in, R, S] before relu, keeping the variance of gradients.
void kaiming_fan_out(const Tensor& weight);

// Layers made inside the scope have weights without memory or values, which adopt_state_dict() gives them.
class ShapesScope {
 public:
  ShapesScope();
  ~ShapesScope();
  ShapesScope(const ShapesScope&) = delete;

 private:
  bool previous_;
};

Tensor weight(const Shape& shape);  // f32, with arbitrary values, where new layers go

namespace detail {
bool skips();
}

}  // namespace xylem::init
