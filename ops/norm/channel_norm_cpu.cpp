// SPDX-License-Identifier: Apache-2.0
// Batch and group norm. Variances come from a mean and squared deviations per small piece, combined by the formula of
// Chan, Golub and LeVeque (1983): no cancellation whatever the mean.
#include <cmath>
#include <vector>

#include "core/util/lane_sum.h"
#include "core/util/parallel.h"
#include "ops/norm/norm.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kPiece = 4096;  // values whose mean and deviations are summed plainly; they stay in the first cache

struct Moments {
  double count = 0, mean = 0, m2 = 0;
  void add(double n, double m, double s) {
    const double total = count + n, delta = m - mean;
    m2 += s + delta * delta * count * n / total;
    mean += delta * n / total;
    count = total;
  }
};

template <class T, class A = acc_t<T>>
void add_values(Moments& moments, const T* x, int64_t count) {
  for (int64_t from = 0; from < count; from += kPiece) {
    const T* p = x + from;
    const int64_t n = std::min(kPiece, count - from);
    const A mean = lane_sum<A>(n, [&](int64_t i) { return A(p[i]); }) / A(n);
    const A square = lane_sum<A>(n, [&](int64_t i) { return (A(p[i]) - mean) * (A(p[i]) - mean); });
    moments.add(double(n), double(mean), double(square));
  }
}

template <class T>
T* pointer(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

// [rows, channels] matrices: pieces of rows, whose extent depends on the shape alone.
struct RowPieces {
  int64_t rows, per_piece, count;
  explicit RowPieces(const ChannelLayout& l)
      : rows(l.outer),
        per_piece(
            std::max<int64_t>(std::max<int64_t>(16, kPiece / std::max<int64_t>(l.channels, 1)), (rows + 255) / 256)),
        count((rows + per_piece - 1) / per_piece) {}
  int64_t begin(int64_t piece) const { return piece * per_piece; }
  int64_t end(int64_t piece) const { return std::min(rows, (piece + 1) * per_piece); }
};

template <class T, class A = acc_t<T>>
std::vector<Moments> column_moments(const T* x, const ChannelLayout& l) {
  const int64_t channels = l.channels;
  const RowPieces pieces(l);
  std::vector<A> partial(2 * pieces.count * channels);
  parallel_for(pieces.count, 1 + kGrain / (channels * pieces.per_piece), [&](int64_t b, int64_t e) {
    for (int64_t piece = b; piece < e; ++piece) {
      A *mean = &partial[2 * piece * channels], *square = mean + channels;
      for (int64_t r = pieces.begin(piece); r < pieces.end(piece); ++r)
        for (int64_t c = 0; c < channels; ++c) mean[c] += A(x[r * channels + c]);
      const A inverse = A(1) / A(pieces.end(piece) - pieces.begin(piece));
      for (int64_t c = 0; c < channels; ++c) mean[c] *= inverse;
      for (int64_t r = pieces.begin(piece); r < pieces.end(piece); ++r)
        for (int64_t c = 0; c < channels; ++c) {
          const A d = A(x[r * channels + c]) - mean[c];
          square[c] += d * d;
        }
    }
  });
  std::vector<Moments> moments(channels);
  parallel_for(channels, 1 + 1024 / std::max<int64_t>(pieces.count, 1), [&](int64_t b, int64_t e) {
    for (int64_t piece = 0; piece < pieces.count; ++piece) {
      const A *mean = &partial[2 * piece * channels], *square = mean + channels;
      for (int64_t c = b; c < e; ++c)
        moments[c].add(double(pieces.end(piece) - pieces.begin(piece)), double(mean[c]), double(square[c]));
    }
  });
  return moments;
}

template <class T, class A = acc_t<T>>
void batch_forward(const BatchNorm& n) {
  const ChannelLayout l = n.layout;
  const T* x = pointer<const T>(n.x);
  T* y = pointer<T>(n.y);
  const A *gain = pointer<const A>(n.gain), *bias = pointer<const A>(n.bias);
  A *mean = n.mean.data<A>(), *rstd = n.rstd.data<A>();
  float *running_mean = pointer<float>(n.running_mean), *running_var = pointer<float>(n.running_var);
  std::vector<Moments> moments(n.training ? l.channels : 0);
  if (n.training && l.inner == 1) moments = column_moments(x, l);
  auto finish = [&](int64_t c) {
    if (!n.training) {
      mean[c] = A(running_mean[c]);
      rstd[c] = A(1 / std::sqrt(double(running_var[c]) + n.eps));
      return;
    }
    const Moments& m = moments[c];
    mean[c] = A(m.mean);
    rstd[c] = A(1 / std::sqrt(m.m2 / m.count + n.eps));
    if (!running_mean) return;
    running_mean[c] = float((1 - n.momentum) * running_mean[c] + n.momentum * m.mean);
    running_var[c] = float((1 - n.momentum) * running_var[c] + n.momentum * m.m2 / (m.count - 1));
  };
  if (l.inner == 1) {
    for (int64_t c = 0; c < l.channels; ++c) finish(c);
    std::vector<A> scale(l.channels), shift(l.channels);
    for (int64_t c = 0; c < l.channels; ++c) {
      scale[c] = rstd[c] * (gain ? gain[c] : A(1));
      shift[c] = bias ? bias[c] : A(0);
    }
    parallel_for(l.outer, 1 + kGrain / std::max<int64_t>(l.channels, 1), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) {
        const T* xr = x + r * l.channels;
        T* yr = y + r * l.channels;
#pragma omp simd
        for (int64_t c = 0; c < l.channels; ++c) yr[c] = T((A(xr[c]) - mean[c]) * scale[c] + shift[c]);
      }
    });
    return;
  }
  parallel_for(l.channels, 1 + kGrain / std::max<int64_t>(l.per_channel(), 1), [&](int64_t b, int64_t e) {
    for (int64_t c = b; c < e; ++c) {
      if (n.training)
        for (int64_t o = 0; o < l.outer; ++o) add_values(moments[c], x + (o * l.channels + c) * l.inner, l.inner);
      finish(c);
      const A m = mean[c], scale = rstd[c] * (gain ? gain[c] : A(1)), shift = bias ? bias[c] : A(0);
      for (int64_t o = 0; o < l.outer; ++o) {
        const T* xp = x + (o * l.channels + c) * l.inner;
        T* yp = y + (o * l.channels + c) * l.inner;
#pragma omp simd
        for (int64_t i = 0; i < l.inner; ++i) yp[i] = T((A(xp[i]) - m) * scale + shift);
      }
    }
  });
}

// Sums of dy and of dy * xhat over one plane.
template <class T, class A = acc_t<T>>
void add_gradient_sums(const T* x, const T* dy, int64_t count, A mean, A rstd, double& sum, double& along) {
  for (int64_t from = 0; from < count; from += kPiece) {
    const int64_t end = std::min(count, from + kPiece);
    A s = 0, a = 0;
#pragma omp simd reduction(+ : s, a)
    for (int64_t i = from; i < end; ++i) {
      s += A(dy[i]);
      a += A(dy[i]) * ((A(x[i]) - mean) * rstd);
    }
    sum += double(s), along += double(a);
  }
}

template <class A>
void put(A* out, int64_t c, double value, bool accumulate) {
  if (out) out[c] = accumulate ? out[c] + A(value) : A(value);
}

template <class T, class A = acc_t<T>>
void batch_backward(const BatchNormGrad& n) {
  const ChannelLayout l = n.layout;
  const T *x = pointer<const T>(n.x), *dy = pointer<const T>(n.dy);
  T* dx = pointer<T>(n.dx);
  const A *gain = pointer<const A>(n.gain), *mean = pointer<const A>(n.mean), *rstd = pointer<const A>(n.rstd);
  A *dgain = pointer<A>(n.dgain), *dbias = pointer<A>(n.dbias);
  const double count = double(l.per_channel());
  std::vector<double> sum(l.channels), along(l.channels);
  if (l.inner != 1) {
    parallel_for(l.channels, 1 + kGrain / std::max<int64_t>(l.per_channel(), 1), [&](int64_t b, int64_t e) {
      for (int64_t c = b; c < e; ++c) {
        for (int64_t o = 0; o < l.outer; ++o) {
          const int64_t at = (o * l.channels + c) * l.inner;
          add_gradient_sums(x + at, dy + at, l.inner, mean[c], rstd[c], sum[c], along[c]);
        }
        put(dbias, c, sum[c], n.accumulate_bias);
        put(dgain, c, along[c], n.accumulate_gain);
        const A scale = rstd[c] * (gain ? gain[c] : A(1)), m = mean[c];
        const A constant = n.training ? A(sum[c] / count) : A(0),
                slope = n.training ? A(along[c] / count) * rstd[c] : A(0);
        for (int64_t o = 0; o < l.outer; ++o) {
          const T *xp = x + (o * l.channels + c) * l.inner, *dyp = dy + (o * l.channels + c) * l.inner;
          T* dxp = dx + (o * l.channels + c) * l.inner;
#pragma omp simd
          for (int64_t i = 0; i < l.inner; ++i) dxp[i] = T(scale * (A(dyp[i]) - constant - (A(xp[i]) - m) * slope));
        }
      }
    });
    return;
  }
  const int64_t channels = l.channels;
  const RowPieces pieces(l);
  std::vector<A> partial(2 * pieces.count * channels);
  parallel_for(pieces.count, 1 + kGrain / std::max<int64_t>(channels * pieces.per_piece, 1), [&](int64_t b, int64_t e) {
    for (int64_t piece = b; piece < e; ++piece) {
      A *s = &partial[2 * piece * channels], *a = s + channels;
      for (int64_t r = pieces.begin(piece); r < pieces.end(piece); ++r) {
        const T *xr = x + r * channels, *dyr = dy + r * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
          s[c] += A(dyr[c]);
          a[c] += A(dyr[c]) * ((A(xr[c]) - mean[c]) * rstd[c]);
        }
      }
    }
  });
  for (int64_t piece = 0; piece < pieces.count; ++piece)
    for (int64_t c = 0; c < channels; ++c) {
      sum[c] += double(partial[2 * piece * channels + c]);
      along[c] += double(partial[(2 * piece + 1) * channels + c]);
    }
  std::vector<A> scale(channels), constant(channels), slope(channels);
  for (int64_t c = 0; c < channels; ++c) {
    put(dbias, c, sum[c], n.accumulate_bias);
    put(dgain, c, along[c], n.accumulate_gain);
    scale[c] = rstd[c] * (gain ? gain[c] : A(1));
    constant[c] = n.training ? A(sum[c] / count) : A(0);
    slope[c] = n.training ? A(along[c] / count) * rstd[c] : A(0);
  }
  parallel_for(l.outer, 1 + kGrain / std::max<int64_t>(channels, 1), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) {
      const T *xr = x + r * channels, *dyr = dy + r * channels;
      T* dxr = dx + r * channels;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c)
        dxr[c] = T(scale[c] * (A(dyr[c]) - constant[c] - (A(xr[c]) - mean[c]) * slope[c]));
    }
  });
}

template <class T, class A = acc_t<T>>
void group_forward(const GroupNorm& n) {
  const int64_t per_group = n.channels / n.groups;
  const T* x = pointer<const T>(n.x);
  T* y = pointer<T>(n.y);
  const A *gain = pointer<const A>(n.gain), *bias = pointer<const A>(n.bias);
  A *mean = n.mean.data<A>(), *rstd = n.rstd.data<A>();
  parallel_for(n.n * n.groups, 1 + kGrain / (per_group * n.inner), [&](int64_t b, int64_t e) {
    for (int64_t g = b; g < e; ++g) {
      const int64_t at = g * per_group * n.inner;
      Moments m;
      add_values(m, x + at, per_group * n.inner);
      mean[g] = A(m.mean);
      rstd[g] = A(1 / std::sqrt(m.m2 / m.count + n.eps));
      for (int64_t k = 0; k < per_group; ++k) {
        const int64_t c = g % n.groups * per_group + k;
        const A scale = rstd[g] * (gain ? gain[c] : A(1)), shift = bias ? bias[c] : A(0), centre = mean[g];
        const T* xp = x + at + k * n.inner;
        T* yp = y + at + k * n.inner;
#pragma omp simd
        for (int64_t i = 0; i < n.inner; ++i) yp[i] = T((A(xp[i]) - centre) * scale + shift);
      }
    }
  });
}

template <class T, class A = acc_t<T>>
void group_backward(const GroupNormGrad& n) {
  const int64_t per_group = n.channels / n.groups, size = per_group * n.inner;
  const T *x = pointer<const T>(n.x), *dy = pointer<const T>(n.dy);
  T* dx = pointer<T>(n.dx);
  const A *gain = pointer<const A>(n.gain), *mean = pointer<const A>(n.mean), *rstd = pointer<const A>(n.rstd);
  std::vector<double> sum(n.n * n.channels), along(n.n * n.channels);
  parallel_for(n.n * n.groups, 1 + kGrain / std::max<int64_t>(size, 1), [&](int64_t b, int64_t e) {
    for (int64_t g = b; g < e; ++g) {
      double group_sum = 0, group_along = 0;
      for (int64_t k = 0; k < per_group; ++k) {
        const int64_t plane = g * per_group + k, at = plane * n.inner;
        add_gradient_sums(x + at, dy + at, n.inner, mean[g], rstd[g], sum[plane], along[plane]);
        const double weight = gain ? double(gain[plane % n.channels]) : 1;
        group_sum += weight * sum[plane], group_along += weight * along[plane];
      }
      const A m = mean[g], s = rstd[g], constant = A(group_sum / double(size)),
              slope = A(group_along / double(size)) * s;
      for (int64_t k = 0; k < per_group; ++k) {
        const int64_t plane = g * per_group + k;
        const A weight = gain ? gain[plane % n.channels] : A(1);
        const T *xp = x + plane * n.inner, *dyp = dy + plane * n.inner;
        T* dxp = dx + plane * n.inner;
#pragma omp simd
        for (int64_t i = 0; i < n.inner; ++i) dxp[i] = T(s * (weight * A(dyp[i]) - constant - (A(xp[i]) - m) * slope));
      }
    }
  });
  A *dgain = pointer<A>(n.dgain), *dbias = pointer<A>(n.dbias);
  for (int64_t c = 0; c < n.channels; ++c) {
    double s = 0, a = 0;
    for (int64_t b = 0; b < n.n; ++b) s += sum[b * n.channels + c], a += along[b * n.channels + c];
    put(dbias, c, s, n.accumulate_bias);
    put(dgain, c, a, n.accumulate_gain);
  }
}

}  // namespace

void batch_norm(const BatchNorm& n) {
  visit_float(n.x.dtype(), [&](auto tag) { batch_forward<typename decltype(tag)::type>(n); });
}
void batch_norm_backward(const BatchNormGrad& n) {
  visit_float(n.x.dtype(), [&](auto tag) { batch_backward<typename decltype(tag)::type>(n); });
}
void group_norm(const GroupNorm& n) {
  visit_float(n.x.dtype(), [&](auto tag) { group_forward<typename decltype(tag)::type>(n); });
}
void group_norm_backward(const GroupNormGrad& n) {
  visit_float(n.x.dtype(), [&](auto tag) { group_backward<typename decltype(tag)::type>(n); });
}

}  // namespace xylem::cpu
