// SPDX-License-Identifier: Apache-2.0
// Sums in a fixed order that vector registers of any width can follow: the result and its accuracy do not depend on
// what the compiler makes of the loop.
#pragma once
#include <cstdint>

namespace xylem {

// term(0) + ... + term(n - 1), as 16 partial sums that are then added in pairs.
template <class A, class Term>
A lane_sum(int64_t n, Term&& term) {
  constexpr int64_t kLanes = 16;
  A lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t j = 0; j < kLanes; ++j) lane[j] += term(i + j);
  }
  for (int64_t j = 0; j < n - i; ++j) lane[j] += term(i + j);
  for (int64_t step = kLanes / 2; step > 0; step /= 2)
    for (int64_t j = 0; j < step; ++j) lane[j] += lane[j + step];
  return lane[0];
}

}  // namespace xylem
