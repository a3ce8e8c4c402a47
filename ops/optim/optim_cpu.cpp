// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "core/util/parallel.h"
#include "ops/optim/optim.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 16384, kPiece = 4096;

}  // namespace

void sum_of_squares(const Tensors& tensors, const Tensor& result) {
  double total = 0;
  for (const Tensor& t : tensors)
    visit_float(t.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      using A = acc_t<T>;
      const T* x = t.data<const T>();
      const int64_t n = t.numel(), pieces = (n + kPiece - 1) / kPiece;
      std::vector<double> partial(pieces);
      parallel_for(pieces, 4, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) {
          const T* piece = x + p * kPiece;
          const int64_t count = std::min(kPiece, n - p * kPiece);
          A sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t i = 0; i < count; ++i) sum += A(piece[i]) * A(piece[i]);
          partial[p] = double(sum);
        }
      });
      for (double p : partial) total += p;
    });
  *result.data<double>() = total;
}

void ema(const Tensor& average, const Tensor& value, double decay) {
  visit_float(average.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    T* a = average.data<T>();
    const T* x = value.data<const T>();
    const A keep = A(decay), take = A(1 - decay);
    parallel_for(average.numel(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) a[i] = T(keep * A(a[i]) + take * A(x[i]));
    });
  });
}

}  // namespace xylem::cpu
