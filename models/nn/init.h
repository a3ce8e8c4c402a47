// SPDX-License-Identifier: Apache-2.0
// Initial values that models set after their layers were made. None is recorded.
#pragma once
#include <cmath>

#include "core/autograd/autograd.h"
#include "ops/ops.h"

namespace xylem::init {

inline void normal(const Tensor& t, double stddev) {
  NoGrad guard;
  normal_(t, 0, stddev);
}
inline void constant(const Tensor& t, double value) {
  NoGrad guard;
  t.fill_(value);
}
// He et al. 2015 for a convolution weight [out, in, R, S] before relu, keeping the variance of gradients.
inline void kaiming_fan_out(const Tensor& weight) {
  double fan_out = double(weight.numel()) / double(weight.size(1));
  normal(weight, std::sqrt(2 / fan_out));
}

}  // namespace xylem::init
