// SPDX-License-Identifier: Apache-2.0
#include "models/quantize/ranks.h"

#include <algorithm>

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

void join_ranks(const Tensor& amax, bool average, const Group& group) {
  if (group.size() == 1) return;
  group.all_reduce(amax, average ? ReduceOp::avg : ReduceOp::max).wait();
}

}  // namespace xylem::quantize
