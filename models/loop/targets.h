// SPDX-License-Identifier: Apache-2.0
// Which targets count in a loss: those that are not the ignored class.
#pragma once
#include "core/tensor/tensor.h"
#include "data/loader.h"

namespace xylem {

// All targets of a batch, counted or not: labels, tokens, pixels, numbers; samples where a batch has no target.
int64_t targets_in(const Batch& batch);

// How many of them count, f64 [1] on their device: integers other than `ignore_index`, and all of any other type.
Tensor counted_targets(const Batch& batch, int64_t ignore_index);

}  // namespace xylem
