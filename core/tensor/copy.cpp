// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/copy.h"

#include <cstring>
#include <functional>
#include <numeric>

#include "core/util/parallel.h"

namespace xylem {

StridedPair merge_dims(const Tensor& dst, const Tensor& src) {
  XY_ASSERT(dst.shape() == src.shape(), dst.shape(), " against ", src.shape());
  StridedPair p;
  p.numel = dst.numel();
  int order[kMaxRank], n = 0;
  for (int i = 0; i < dst.rank(); ++i)
    if (dst.size(i) != 1) order[n++] = i;
  // Slowest first by dst's stride, so that writes are as sequential as they can be.
  std::stable_sort(order, order + n, [&](int a, int b) { return dst.stride(a) > dst.stride(b); });
  for (int k = 0; k < n; ++k) {
    int64_t size = dst.size(order[k]), d = dst.stride(order[k]), s = src.stride(order[k]);
    if (p.rank > 0 && p.dst[p.rank - 1] == d * size && p.src[p.rank - 1] == s * size) {
      p.shape[p.rank - 1] *= size, p.dst[p.rank - 1] = d, p.src[p.rank - 1] = s;
    } else {
      p.shape[p.rank] = size, p.dst[p.rank] = d, p.src[p.rank] = s, ++p.rank;
    }
  }
  return p;
}

namespace cpu {
namespace {

constexpr int64_t kGrain = 32768;

// dst_offset, src_offset, count, dst_stride, src_stride
using Row = std::function<void(int64_t, int64_t, int64_t, int64_t, int64_t)>;

// Calls row for every innermost row, in parallel. No template: dozens of pairs of types share it.
void for_rows(const StridedPair& p, const Row& row) {
  if (p.numel == 0) return;
  if (p.rank == 0) return row(0, 0, 1, 1, 1);
  int inner = p.rank - 1;
  int64_t count = p.shape[inner], rows = p.numel / count;
  if (rows == 1) {
    parallel_for(count, kGrain, [&](int64_t b, int64_t e) {
      row(b * p.dst[inner], b * p.src[inner], e - b, p.dst[inner], p.src[inner]);
    });
    return;
  }
  parallel_for(rows, std::max<int64_t>(1, kGrain / count), [&](int64_t b, int64_t e) {
    int64_t index[kMaxRank] = {}, d = 0, s = 0;
    for (int64_t rest = b, i = inner - 1; i >= 0; --i) {
      index[i] = rest % p.shape[i], rest /= p.shape[i];
      d += index[i] * p.dst[i], s += index[i] * p.src[i];
    }
    for (int64_t r = b; r < e; ++r) {
      row(d, s, count, p.dst[inner], p.src[inner]);
      for (int i = inner - 1; i >= 0; --i) {
        d += p.dst[i], s += p.src[i];
        if (++index[i] < p.shape[i]) break;
        d -= p.shape[i] * p.dst[i], s -= p.shape[i] * p.src[i], index[i] = 0;
      }
    }
  });
}

template <class D, class S>
D convert(S v) {
  if constexpr (std::is_same_v<D, bool>)
    return static_cast<acc_t<S>>(v) != 0;
  else if constexpr (std::is_same_v<D, S>)
    return v;
  else
    return static_cast<D>(static_cast<acc_t<S>>(v));
}

template <class D, class S>
void copy_as(const Tensor& dst, const Tensor& src) {
  D* d = static_cast<D*>(dst.raw());
  const S* s = static_cast<const S*>(src.raw());
  for_rows(merge_dims(dst, src), [=](int64_t doff, int64_t soff, int64_t n, int64_t ds, int64_t ss) {
    D* dp = d + doff;
    const S* sp = s + soff;
    if (ds == 1 && ss == 1) {
      if constexpr (std::is_same_v<D, S>) {
        std::memcpy(dp, sp, n * sizeof(D));
      } else {
        for (int64_t i = 0; i < n; ++i) dp[i] = convert<D>(sp[i]);
      }
    } else if (ds == 1 && ss == 0) {
      std::fill_n(dp, n, convert<D>(*sp));
    } else {
      for (int64_t i = 0; i < n; ++i) dp[i * ds] = convert<D>(sp[i * ss]);
    }
  });
}

}  // namespace

void copy(const Tensor& dst, const Tensor& src) {
  if (dst.dtype() == src.dtype()) {
    switch (size_of(dst.dtype())) {
      case 1:
        return copy_as<uint8_t, uint8_t>(dst, src);
      case 2:
        return copy_as<uint16_t, uint16_t>(dst, src);
      case 4:
        return copy_as<uint32_t, uint32_t>(dst, src);
      default:
        return copy_as<uint64_t, uint64_t>(dst, src);
    }
  }
  if (is_float(dst.dtype()) && is_float(src.dtype())) {
    visit_float(dst.dtype(), [&](auto d) {
      visit_float(src.dtype(),
                  [&](auto s) { copy_as<typename decltype(d)::type, typename decltype(s)::type>(dst, src); });
    });
    return;
  }
  // Casts that involve an integer or bool meet in f64, or in i64 where both are whole.
  bool whole = !is_float(dst.dtype()) && !is_float(src.dtype());
  DType middle = whole ? i64 : f64;
  if (dst.dtype() == middle)
    return visit_any(src.dtype(), [&](auto s) {
      using S = typename decltype(s)::type;
      whole ? copy_as<int64_t, S>(dst, src) : copy_as<double, S>(dst, src);
    });
  Tensor wide = src;
  if (src.dtype() != middle) {
    wide = empty(src.shape(), middle);
    copy(wide, src);
  }
  visit_any(dst.dtype(), [&](auto d) {
    using D = typename decltype(d)::type;
    whole ? copy_as<D, int64_t>(dst, wide) : copy_as<D, double>(dst, wide);
  });
}

void fill(const Tensor& dst, Scalar value) {
  visit_any(dst.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T v = value.to<T>();
    T* d = static_cast<T*>(dst.raw());
    for_rows(merge_dims(dst, dst), [=](int64_t off, int64_t, int64_t n, int64_t ds, int64_t) {
      if (ds == 1)
        std::fill_n(d + off, n, v);
      else
        for (int64_t i = 0; i < n; ++i) d[off + i * ds] = v;
    });
  });
}

void accumulate(const Tensor& dst, const Tensor& src, double scale) {
  visit_float(dst.dtype(), [&](auto dtag) {
    visit_float(src.dtype(), [&](auto stag) {
      using D = typename decltype(dtag)::type;
      using S = typename decltype(stag)::type;
      using A = acc_t<D>;
      D* d = static_cast<D*>(dst.raw());
      const S* s = static_cast<const S*>(src.raw());
      A k = static_cast<A>(scale);
      for_rows(merge_dims(dst, src), [=](int64_t doff, int64_t soff, int64_t n, int64_t ds, int64_t ss) {
        D* dp = d + doff;
        const S* sp = s + soff;
        if (ds == 1 && ss == 1) {
          for (int64_t i = 0; i < n; ++i) dp[i] = D(A(dp[i]) + k * static_cast<A>(static_cast<acc_t<S>>(sp[i])));
        } else {
          for (int64_t i = 0; i < n; ++i) {
            D& out = dp[i * ds];
            out = D(A(out) + k * static_cast<A>(static_cast<acc_t<S>>(sp[i * ss])));
          }
        }
      });
    });
  });
}

}  // namespace cpu
}  // namespace xylem
