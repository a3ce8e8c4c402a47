// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/scale_into.h"

#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Scale {
  template <class A>
  XY_HD A operator()(A x, A factor) const {
    return x * factor;
  }
};
struct ScaleAdd {
  template <class A>
  XY_HD A operator()(A old, A x, A factor) const {
    return old + x * factor;
  }
};

template <class O, class I>
void run(const Tensor& out, const Tensor& x, const Tensor& factor, bool accumulate) {
  using S = acc_t<I>;
  if (accumulate)
    pointwise::run<O, O, I, S>(ScaleAdd{}, {&out, &out, &x, &factor});
  else
    pointwise::run<O, I, S>(Scale{}, {&out, &x, &factor});
}

}  // namespace

void scale_into(const Tensor& out, const Tensor& x, const Tensor& factor, bool accumulate) {
  XY_ASSERT(out.shape() == x.shape() && factor.numel() == 1);
  visit_float(out.dtype(), [&](auto tag) {
    using O = typename decltype(tag)::type;
    if (x.dtype() == out.dtype()) return run<O, O>(out, x, factor, accumulate);
    XY_ASSERT(is_half(out.dtype()) && x.dtype() == f32);
    if constexpr (sizeof(O) == 2) run<O, float>(out, x, factor, accumulate);
  });
}

}  // namespace xylem
