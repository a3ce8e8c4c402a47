// SPDX-License-Identifier: Apache-2.0
#include "models/loop/targets.h"

#include "ops/ops.h"

namespace xylem {

int64_t targets_in(const Batch& batch) { return batch.target.defined() ? batch.target.numel() : batch.input.size(0); }

Tensor counted_targets(const Batch& batch, int64_t ignore_index) {
  NoGrad guard;
  const double all = double(targets_in(batch));
  if (!batch.target.defined() || is_float(batch.target.dtype()) || all == 0)
    return full({1}, all, f64, batch.input.device());
  // In f32 along a row, where it is exact, and the rows in f64.
  const Tensor ignored = eq(batch.target, double(ignore_index)).to(f32);
  const Tensor rows = ignored.rank() > 1 ? sum(ignored, {-1}) : ignored;
  return full({1}, all, f64, batch.input.device()) - sum(rows.to(f64)).reshape({1});
}

}  // namespace xylem
