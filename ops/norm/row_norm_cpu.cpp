// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "core/util/lane_sum.h"
#include "core/util/parallel.h"
#include "ops/norm/norm.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements per thread below which threads do not pay

template <class T>
const T* pointer(const Tensor& t) {
  return t.defined() ? t.data<const T>() : nullptr;
}
template <class T>
T* mutable_pointer(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

template <class T, class A = acc_t<T>>
void forward(const RowNorm& n) {
  const int64_t cols = n.x.size(-1), rows = n.x.numel() / cols;
  const T *x = pointer<T>(n.x), *residual = pointer<T>(n.residual);
  const A *gain = pointer<A>(n.gain), *bias = pointer<A>(n.bias);
  T *sum = mutable_pointer<T>(n.sum), *y = mutable_pointer<T>(n.y);
  A *mean = mutable_pointer<A>(n.mean), *rstd = mutable_pointer<A>(n.rstd);
  parallel_for(rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
    std::vector<A> buffer(cols);
    A* h = buffer.data();
    for (int64_t r = begin; r < end; ++r) {
      const T* xr = x + r * cols;
      if (residual) {
        const T* rr = residual + r * cols;
        T* sr = sum + r * cols;
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) {
          sr[c] = T(A(xr[c]) + A(rr[c]));
          h[c] = A(sr[c]);
        }
      } else {
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) h[c] = A(xr[c]);
      }
      A m = 0;
      if (mean) mean[r] = m = lane_sum<A>(cols, [&](int64_t c) { return h[c]; }) / A(cols);
      const A square = lane_sum<A>(cols, [&](int64_t c) {
        h[c] -= m;
        return h[c] * h[c];
      });
      const A s = 1 / std::sqrt(square / A(cols) + A(n.eps));
      rstd[r] = s;
      T* yr = y + r * cols;
      if (gain && bias) {
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) yr[c] = T(h[c] * s * gain[c] + bias[c]);
      } else {
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) yr[c] = T(h[c] * s * (gain ? gain[c] : A(1)) + (bias ? bias[c] : A(0)));
      }
    }
  });
}

template <class T, class A = acc_t<T>>
void backward(const RowNormGrad& n) {
  const int64_t cols = n.x.size(-1), rows = n.x.numel() / std::max<int64_t>(cols, 1);
  const T *x = pointer<T>(n.x), *dy = pointer<T>(n.dy), *dsum = pointer<T>(n.dsum);
  const A *gain = pointer<A>(n.gain), *mean = pointer<A>(n.mean), *rstd = pointer<A>(n.rstd);
  T* dx = mutable_pointer<T>(n.dx);
  A *dgain = mutable_pointer<A>(n.dgain), *dbias = mutable_pointer<A>(n.dbias);
  // Chunks depend on the shape alone, so the sums do not depend on the number of threads.
  const int64_t per_chunk = std::max<int64_t>(8, (rows + 63) / 64), chunks = (rows + per_chunk - 1) / per_chunk;
  std::vector<A> partial(dgain || dbias ? 2 * chunks * cols : 0);
  parallel_for(chunks, 1 + kGrain / std::max<int64_t>(cols * per_chunk, 1), [&](int64_t begin, int64_t end) {
    std::vector<A> buffer(2 * cols);
    A *xhat = buffer.data(), *g = xhat + cols;
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      A* pg = partial.empty() ? nullptr : &partial[2 * chunk * cols];
      for (int64_t r = chunk * per_chunk; r < std::min(rows, (chunk + 1) * per_chunk); ++r) {
        const T *xr = x + r * cols, *dyr = dy + r * cols;
        const A m = mean ? mean[r] : A(0), s = rstd[r];
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) {
          xhat[c] = (A(xr[c]) - m) * s;
          g[c] = A(dyr[c]);
        }
        if (pg) {
          A* pb = pg + cols;
#pragma omp simd
          for (int64_t c = 0; c < cols; ++c) {
            pg[c] += g[c] * xhat[c];
            pb[c] += g[c];
          }
        }
        if (gain) {
#pragma omp simd
          for (int64_t c = 0; c < cols; ++c) g[c] *= gain[c];
        }
        A along_one = 0, along_x = 0;
#pragma omp simd reduction(+ : along_one, along_x)
        for (int64_t c = 0; c < cols; ++c) {
          along_one += g[c];
          along_x += g[c] * xhat[c];
        }
        along_one = mean ? along_one / A(cols) : A(0), along_x /= A(cols);
        T* dxr = dx + r * cols;
        if (dsum) {
          const T* dsr = dsum + r * cols;
#pragma omp simd
          for (int64_t c = 0; c < cols; ++c) dxr[c] = T(A(dsr[c]) + s * (g[c] - along_one - xhat[c] * along_x));
        } else {
#pragma omp simd
          for (int64_t c = 0; c < cols; ++c) dxr[c] = T(s * (g[c] - along_one - xhat[c] * along_x));
        }
      }
    }
  });
  auto reduce = [&](A* out, int64_t offset, bool accumulate) {
    if (!out) return;
    parallel_for(cols, 1 + kGrain / std::max<int64_t>(chunks, 1), [&](int64_t begin, int64_t end) {
      if (!accumulate) std::fill(out + begin, out + end, A(0));
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const A* p = &partial[2 * chunk * cols + offset];
        for (int64_t c = begin; c < end; ++c) out[c] += p[c];
      }
    });
  };
  reduce(dgain, 0, n.accumulate_gain);
  reduce(dbias, cols, n.accumulate_bias);
}

}  // namespace

void row_norm(const RowNorm& n) {
  visit_float(n.x.dtype(), [&](auto tag) { forward<typename decltype(tag)::type>(n); });
}
void row_norm_backward(const RowNormGrad& n) {
  visit_float(n.x.dtype(), [&](auto tag) { backward<typename decltype(tag)::type>(n); });
}

}  // namespace xylem::cpu
