// SPDX-License-Identifier: Apache-2.0
// What ranks that calibrated on different data agree on. Internal to models/quantize.
#pragma once
#include "distributed/group/group.h"
#include "models/quantize/observer.h"

namespace xylem::quantize {

void join_ranks(Histogram& histogram, const Group& group);              // the sum, over the largest range
void join_ranks(const Tensor& amax, bool average, const Group& group);  // in place: the mean, or the largest

}  // namespace xylem::quantize
