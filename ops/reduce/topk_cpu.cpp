// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "core/util/parallel.h"
#include "ops/reduce/reduce.h"

namespace xylem::cpu {
namespace {

// The order of argmax and topk: a NaN before numbers, larger values first. Equal values are ordered by index elsewhere.
template <class A>
bool above(A a, A b) {
  return a > b || (a != a && b == b);
}

}  // namespace

void argmax(const Tensor& x, const Tensor& y) {
  visit_any(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t n = x.size(-1);
    parallel_for(y.numel(), std::max<int64_t>(1, 16384 / n), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) {
        const T* row = x.data<T>() + r * n;
        int64_t best = 0;
        for (int64_t i = 1; i < n; ++i)
          if (above(static_cast<acc_t<T>>(row[i]), static_cast<acc_t<T>>(row[best]))) best = i;
        y.data<int64_t>()[r] = best;
      }
    });
  });
}

void topk(const Tensor& x, const Tensor& values, const Tensor& indices) {
  visit_any(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t n = x.size(-1), k = values.size(-1);
    parallel_for(values.numel() / k, 1, [&](int64_t b, int64_t e) {
      std::vector<int64_t> order(n);
      for (int64_t r = b; r < e; ++r) {
        const T* row = x.data<T>() + r * n;
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + k, order.end(), [row](int64_t a, int64_t c) {
          auto va = static_cast<acc_t<T>>(row[a]), vc = static_cast<acc_t<T>>(row[c]);
          return above(va, vc) || (!above(vc, va) && a < c);
        });
        for (int64_t i = 0; i < k; ++i) {
          values.data<T>()[r * k + i] = row[order[i]];
          indices.data<int64_t>()[r * k + i] = order[i];
        }
      }
    });
  });
}

}  // namespace xylem::cpu
