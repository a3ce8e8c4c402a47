// SPDX-License-Identifier: Apache-2.0
// Loops over CPU cores. Results never depend on the number of threads: every iteration writes its own output.
#pragma once
#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace xylem {

inline int num_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// Calls f(begin, end) on disjoint ranges that cover [0, n); ranges hold at least `grain` iterations.
template <class F>
void parallel_for(int64_t n, [[maybe_unused]] int64_t grain, F&& f) {
  if (n <= 0) return;
#ifdef _OPENMP
  int64_t chunks = std::min<int64_t>(num_threads(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  if (chunks > 1 && !omp_in_parallel()) {
    int64_t size = (n + chunks - 1) / chunks;
#pragma omp parallel for num_threads(int(chunks)) schedule(static, 1)
    for (int64_t c = 0; c < chunks; ++c)
      if (c * size < n) f(c * size, std::min(n, (c + 1) * size));
    return;
  }
#endif
  f(int64_t(0), n);
}

}  // namespace xylem
