// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

// out = x * factor, or out += x * factor, rounded once. x has out's type or is f32 where out holds 16 bits; factor is a
// scalar tensor in compute_type(x), so that a factor known to the GPU alone needs no wait. Not recorded.
void scale_into(const Tensor& out, const Tensor& x, const Tensor& factor, bool accumulate);

}  // namespace xylem
