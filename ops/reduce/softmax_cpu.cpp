// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "core/util/parallel.h"
#include "ops/elementwise/math.h"
#include "ops/reduce/reduce.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 8192;  // elements per thread at least

template <class F>
void for_rows(const Tensor& x, F&& f) {
  int64_t n = x.size(-1), rows = x.numel() / n;
  parallel_for(rows, std::max<int64_t>(1, kGrain / n), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) f(r * n, n);
  });
}

}  // namespace

void softmax(const Tensor& x, const Tensor& y, bool log) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    for_rows(x, [px = x.data<T>(), py = y.data<T>(), log](int64_t at, int64_t n) {
      const T* in = px + at;
      T* out = py + at;
      A top = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : top)
      for (int64_t i = 0; i < n; ++i) top = std::max(top, static_cast<A>(in[i]));
      A total = 0;
      if (log) {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; ++i) total += math::exp(static_cast<A>(in[i]) - top);
        A shift = top + std::log(total);
        for (int64_t i = 0; i < n; ++i) out[i] = T(static_cast<A>(in[i]) - shift);
      } else if constexpr (std::is_same_v<T, A>) {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; ++i) total += out[i] = math::exp(in[i] - top);
        A scale = 1 / total;
        for (int64_t i = 0; i < n; ++i) out[i] *= scale;
      } else {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; ++i) total += math::exp(static_cast<A>(in[i]) - top);
        for (int64_t i = 0; i < n; ++i) out[i] = T(math::exp(static_cast<A>(in[i]) - top) / total);
      }
    });
  });
}

void softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool log) {
  visit_float(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    for_rows(y, [pg = dy.data<T>(), py = y.data<T>(), px = dx.data<T>(), log](int64_t at, int64_t n) {
      const T *g = pg + at, *out = py + at;
      T* d = px + at;
      A total = 0;
      if (log) {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; ++i) total += A(g[i]);
        for (int64_t i = 0; i < n; ++i) d[i] = T(A(g[i]) - math::exp(A(out[i])) * total);
      } else {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; ++i) total += A(g[i]) * A(out[i]);
        for (int64_t i = 0; i < n; ++i) d[i] = T(A(out[i]) * (A(g[i]) - total));
      }
    });
  });
}

}  // namespace xylem::cpu
