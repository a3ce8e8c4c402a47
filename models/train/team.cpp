// SPDX-License-Identifier: Apache-2.0
#include "models/train/team.h"

#include <algorithm>
#include <bit>

#include "core/util/rng.h"

namespace xylem {

BatchSplit Team::split(const TrainConfig& config) const {
  int64_t all = config.train.global_batch, micro = config.train.micro_batch;
  XY_CHECK(all % size() == 0, "train.global_batch (", all, ") is not a multiple of the ", size(),
           " ranks that share it");
  int64_t mine = all / size();
  if (micro == 0) micro = mine;
  XY_CHECK(mine % micro == 0, "train.global_batch (", all, ") leaves each of ", size(), " ranks ", mine,
           " samples, which is not a multiple of train.micro_batch (", micro, ")");
  return {.micro = micro, .micro_batches = mine / micro};
}

ParallelOptions Team::parallel(const TrainConfig& config) const {
  const TrainConfig::Distributed& d = config.distributed;
  return {.group = group_,
          .zero = int(d.zero),
          .reduce_dtype = d.reduce_dtype == "bf16" ? bf16 : f32,
          .bucket_mb = d.bucket_mb,
          .first_bucket_mb = std::min(1.0, d.bucket_mb),
          // Learned scales rest until quantization begins.
          .find_unused = d.find_unused || config.quantize.learned};
}

void Team::seed(uint64_t seed) const {
  RngState state = rng::state();
  state.seed = seed + uint64_t(rank()) * 0x9E3779B97F4A7C15ull;
  rng::set_state(state);
}

bool Team::any(bool mine) const {
  if (size() == 1) return mine;
  auto all = group_.gather_integers(mine);
  return std::any_of(all.begin(), all.end(), [](int64_t v) { return v != 0; });
}

double Team::largest(double mine) const {
  if (size() == 1) return mine;
  for (int64_t bits : group_.gather_integers(std::bit_cast<int64_t>(mine)))
    mine = std::max(mine, std::bit_cast<double>(bits));
  return mine;
}

void Team::barrier() const {
  if (size() > 1) group_.barrier();
}

}  // namespace xylem
