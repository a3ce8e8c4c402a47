// SPDX-License-Identifier: Apache-2.0
// What ranks that calibrated on different data agree on. Internal to models/quantize.
#pragma once
#include "distributed/group/group.h"
#include "models/quantize/observer.h"

namespace xylem::quantize {

void join_ranks(Histogram& histogram, const Group& group);  // the sum, over the largest range
// In place: the largest, or the mean of the ranks that have `seen` data.
void join_largest(const Tensor& amax, const Group& group);
void join_mean(const Tensor& amax, bool seen, const Group& group);

}  // namespace xylem::quantize
