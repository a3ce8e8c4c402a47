// SPDX-License-Identifier: Apache-2.0
// Kernels of abs_histogram. Internal to ops/quant.
#pragma once
#include "core/tensor/half.h"
#include "core/tensor/tensor.h"

namespace xylem {

// The part of [0, range] that |x| falls into, `per_bin` parts to the unit; -1 for NaN.
template <class A>
XY_HD int64_t bin_of(A x, A per_bin, int64_t bins) {
  A at = (x < A(0) ? -x : x) * per_bin;
  return at < A(bins) ? int64_t(at) : at >= A(bins) ? bins - 1 : -1;
}

// Adds to `counts` (i64, contiguous, zeroed by the caller); x contiguous.
namespace cpu {
void abs_histogram(const Tensor& x, double per_bin, const Tensor& counts);
}
namespace cuda {
void abs_histogram(const Tensor& x, double per_bin, const Tensor& counts);
}

}  // namespace xylem
