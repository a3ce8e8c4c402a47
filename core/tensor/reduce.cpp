// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/reduce.h"

#include "core/tensor/dispatch.h"

namespace xylem {

ReducePlan plan_reduction(const Tensor& x, const std::vector<bool>& reduce) {
  ReducePlan plan;
  auto add = [](ReducePlan::Dims& d, int64_t size, int64_t stride) {
    d.numel *= size;
    if (size == 1) return;
    if (d.rank > 0 && d.stride[d.rank - 1] == size * stride) {
      d.shape[d.rank - 1] *= size, d.stride[d.rank - 1] = stride;
    } else {
      d.shape[d.rank] = size, d.stride[d.rank] = stride, ++d.rank;
    }
  };
  for (int i = 0; i < x.rank(); ++i) add(reduce[i] ? plan.reduced : plan.kept, x.shape()[i], x.strides()[i]);
  return plan;
}

Tensor reduced(const Tensor& x, const std::vector<bool>& over, const Shape& shape, ReduceKind kind, double scale) {
  Tensor y = empty(shape, x.dtype(), x.device());
  ReducePlan plan = plan_reduction(x, over);
  if (y.numel() > 0) XY_ON_DEVICE(x, reduce, x, y, plan, kind, scale);
  return y;
}

}  // namespace xylem
