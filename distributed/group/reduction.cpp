// SPDX-License-Identifier: Apache-2.0
#include "distributed/group/reduction.h"

#include <cstring>

namespace xylem {
namespace {

template <class T>
void widen_all(void* sum, const void* x, int64_t n) {
  using A = acc_t<T>;
  if constexpr (std::is_same_v<A, T>) {
    std::memcpy(sum, x, size_t(n) * sizeof(T));
  } else {
    A* s = static_cast<A*>(sum);
    const T* p = static_cast<const T*>(x);
    for (int64_t i = 0; i < n; ++i) s[i] = A(p[i]);
  }
}

template <class A>
A plus(A a, A b) {
  if constexpr (std::is_same_v<A, bool>)
    return a || b;
  else if constexpr (std::is_integral_v<A>)  // wraps
    return A(static_cast<std::make_unsigned_t<A>>(a) + static_cast<std::make_unsigned_t<A>>(b));
  else
    return a + b;
}

// NaN wins.
template <ReduceOp op, class T>
void combine_all(void* sum, const void* x, int64_t n) {
  using A = acc_t<T>;
  A* s = static_cast<A*>(sum);
  const T* p = static_cast<const T*>(x);
  for (int64_t i = 0; i < n; ++i) {
    A v = A(p[i]);
    if constexpr (op == ReduceOp::min)
      s[i] = v < s[i] || v != v ? v : s[i];
    else if constexpr (op == ReduceOp::max)
      s[i] = v > s[i] || v != v ? v : s[i];
    else
      s[i] = plus(s[i], v);
  }
}

template <class T>
void finish_all(void* out, const void* sum, int64_t n, double divisor) {
  using A = acc_t<T>;
  T* o = static_cast<T*>(out);
  const A* s = static_cast<const A*>(sum);
  if constexpr (std::is_same_v<A, double> || std::is_same_v<A, float>) {
    if (divisor != 1) {
      for (int64_t i = 0; i < n; ++i) o[i] = T(s[i] / A(divisor));
      return;
    }
  }
  if constexpr (std::is_same_v<A, T>)
    std::memcpy(out, sum, size_t(n) * sizeof(T));
  else
    for (int64_t i = 0; i < n; ++i) o[i] = T(s[i]);
}

}  // namespace

HostReduction::HostReduction(DType dtype, ReduceOp op, int ranks) : divisor_(op == ReduceOp::avg ? ranks : 1) {
  visit_any(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    size_ = sizeof(T);
    wide_ = sizeof(acc_t<T>);
    widen_ = widen_all<T>;
    finish_ = finish_all<T>;
    combine_ = op == ReduceOp::min   ? combine_all<ReduceOp::min, T>
               : op == ReduceOp::max ? combine_all<ReduceOp::max, T>
                                     : combine_all<ReduceOp::sum, T>;
  });
}

void HostReduction::all(void* out, const char* const* x, int count, int64_t n) const {
  constexpr int64_t kBlock = 4096;
  double sum[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    int64_t m = n - at < kBlock ? n - at : kBlock;
    size_t offset = size_t(at) * size_;
    widen(sum, x[0] + offset, m);
    for (int r = 1; r < count; ++r) combine(sum, x[r] + offset, m);
    finish(static_cast<char*>(out) + offset, sum, m);
  }
}

}  // namespace xylem
