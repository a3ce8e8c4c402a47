// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/add_flat.h"

#include "core/util/parallel.h"

namespace xylem {
namespace {

constexpr int64_t kGrain = 32768;

bool same_memory_order(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype() || a.device() != b.device()) return false;
  for (int i = 0; i < a.rank(); ++i)
    if (a.shape()[i] != 1 && a.strides()[i] != b.strides()[i]) return false;
  return true;
}

}  // namespace

bool can_add_flat(const Tensor& dst, const Tensor& a, const Tensor& b) {
  return is_float(dst.dtype()) && dst.is_dense() && same_memory_order(dst, a) && same_memory_order(dst, b);
}

void add_flat(const Tensor& dst, const Tensor& a, const Tensor& b) {
  XY_ASSERT(can_add_flat(dst, a, b));
#ifdef XY_WITH_CUDA
  if (dst.is_cuda()) return cuda::add_flat(dst, a, b);
#endif
  visit_float(dst.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    T* out = static_cast<T*>(dst.raw());
    const T *left = static_cast<const T*>(a.raw()), *right = static_cast<const T*>(b.raw());
    parallel_for(dst.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = T(A(left[i]) + A(right[i]));
    });
  });
}

}  // namespace xylem
