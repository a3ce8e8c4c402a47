// SPDX-License-Identifier: Apache-2.0
// The sum of two tensors that lie in memory alike: gradients at a fork.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

// Whether all three have one shape, one floating-point type and the same dense strides, on one device.
bool can_add_flat(const Tensor& dst, const Tensor& a, const Tensor& b);
// dst = a + b, rounded once; dst may be a or b. can_add_flat() must hold.
void add_flat(const Tensor& dst, const Tensor& a, const Tensor& b);

namespace cuda {
void add_flat(const Tensor& dst, const Tensor& a, const Tensor& b);
}

}  // namespace xylem
