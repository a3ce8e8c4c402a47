// SPDX-License-Identifier: Apache-2.0
#include "models/quantize/ranks.h"

#include <algorithm>

#include "ops/ops.h"

namespace xylem::quantize {

void join_ranks(Histogram& histogram, const Group& group) {
  if (group.size() == 1) return;
  constexpr int64_t kNone = -1000;  // a rank that has seen nothing
  auto exponents = group.gather_integers(histogram.empty() ? kNone : histogram.exponent());
  int64_t widest = *std::max_element(exponents.begin(), exponents.end());
  if (widest == kNone) return;
  histogram.widen(int(widest));
  Tensor counts = from_vector(histogram.counts(), {Histogram::kBins});
  group.all_reduce(counts).wait();
  histogram.set_counts(counts.to_vector<int64_t>());
}

void join_largest(const Tensor& amax, const Group& group) {
  if (group.size() > 1) group.all_reduce(amax, ReduceOp::max).wait();
}

void join_mean(const Tensor& amax, bool seen, const Group& group) {
  if (group.size() == 1) return;
  double weight = seen ? 1 : 0;
  Tensor sums = stack({amax * weight, full({}, weight, amax.dtype(), amax.device())});
  group.all_reduce(sums).wait();
  amax.copy_(sums[0] / maximum(sums[1], ones({}, amax.dtype(), amax.device())));
}

}  // namespace xylem::quantize
