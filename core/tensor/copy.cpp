// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/copy.h"

#include <algorithm>
#include <cstring>

#include "core/tensor/strided.h"

namespace xylem {

namespace cpu {
namespace {

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
  const StridedPlan plan = plan_strided({&dst, &src});
  const int64_t ds = plan.stride[0][plan.rank - 1], ss = plan.stride[1][plan.rank - 1];
  for_rows(plan, [=](const int64_t* at, int64_t n) {
    D* dp = d + at[0];
    const S* sp = s + at[1];
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
    const StridedPlan plan = plan_strided({&dst});
    const int64_t ds = plan.stride[0][plan.rank - 1];
    for_rows(plan, [=](const int64_t* at, int64_t n) {
      if (ds == 1)
        std::fill_n(d + at[0], n, v);
      else
        for (int64_t i = 0; i < n; ++i) d[at[0] + i * ds] = v;
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
      const StridedPlan plan = plan_strided({&dst, &src});
      const int64_t ds = plan.stride[0][plan.rank - 1], ss = plan.stride[1][plan.rank - 1];
      for_rows(plan, [=](const int64_t* at, int64_t n) {
        D* dp = d + at[0];
        const S* sp = s + at[1];
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
