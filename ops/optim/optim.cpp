// SPDX-License-Identifier: Apache-2.0
// What goes with the optimizers' updates: the norm of gradients, averages.
#include "ops/optim/optim.h"

#include "core/tensor/dispatch.h"
#include "ops/backend/grad_target.h"

namespace xylem {

Tensor sum_of_squares(const Tensors& tensors) {
  OpScope scope("sum_of_squares");
  NoGrad guard;
  XY_CHECK(!tensors.empty(), "needs at least one tensor");
  Tensors flat;
  for (const Tensor& t : tensors) {
    XY_CHECK(is_float(t.dtype()), "needs floating point tensors, not ", t.dtype());
    XY_CHECK(t.device() == tensors[0].device(), "tensors are on ", tensors[0].device(), " and ", t.device());
    flat.push_back(packed(t));
  }
  Tensor result = empty({1}, f64, tensors[0].device());
  XY_ON_DEVICE(result, sum_of_squares, flat, result);
  return result;
}

void ema_update(const Tensor& average, const Tensor& value, double decay) {
  OpScope scope("ema_update");
  NoGrad guard;
  XY_CHECK(average.shape() == value.shape(), "average has shape ", average.shape(), " and value ", value.shape());
  XY_CHECK(average.device() == value.device(), "average is on ", average.device(), " and value on ", value.device());
  XY_CHECK(is_float(average.dtype()) && average.is_contiguous(), "average must be contiguous and floating point");
  if (average.numel() == 0) return;
  XY_ON_DEVICE(average, ema, average, packed(value, average.dtype()), decay);
  average.bump_version();
}

}  // namespace xylem
