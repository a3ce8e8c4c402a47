// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <algorithm>

#include "core/random/rng.h"
#include "core/util/check.h"

namespace xylem {

int64_t permute_index(int64_t index, int64_t n, uint64_t key) {
  if (n <= 1) return index;
  int half = 1;
  while ((int64_t(1) << (2 * half)) < n) ++half;
  uint64_t mask = (uint64_t(1) << half) - 1, x = uint64_t(index);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      uint64_t mixed = left ^ (philox(key, right, round).v[0] & mask);
      left = right, right = mixed;
    }
    x = left << half | right;
  } while (x >= uint64_t(n));
  return int64_t(x);
}

Sampler::Sampler(int64_t samples, const SamplerOptions& options) : samples_(samples), options_(options) {
  XY_CHECK(options.batch > 0, "sampler: batch size ", options.batch, " must be positive");
  XY_CHECK(options.world > 0 && options.rank >= 0 && options.rank < options.world, "sampler: rank ", options.rank,
           " of ", options.world);
  XY_CHECK(options.accumulate > 0, "sampler: accumulate ", options.accumulate, " must be positive");
  int64_t per_step = options.batch * options.world, whole = per_step * options.accumulate;
  steps_ = options.drop_last ? samples / whole * options.accumulate : (samples + per_step - 1) / per_step;
  XY_CHECK(steps_ > 0, "sampler: ", samples, " samples do not fill one step of ", options.drop_last ? whole : per_step,
           "; use a smaller batch or drop_last = false");
}

int64_t Sampler::dropped() const { return std::max<int64_t>(0, samples_ - steps_ * options_.batch * options_.world); }
int64_t Sampler::padded() const { return std::max<int64_t>(0, steps_ * options_.batch * options_.world - samples_); }

int64_t Sampler::shuffled(int64_t position, uint64_t key) const {
  if (options_.block <= 1) return permute_index(position, samples_, key);
  // Whole blocks change places; the last, short one stays, as part of the last window.
  int64_t block = options_.block, blocks = samples_ / block, per_window = std::max<int64_t>(1, options_.window / block);
  int64_t windows = std::max<int64_t>(1, blocks / per_window);
  int64_t window = std::min(position / (per_window * block), windows - 1), first = window * per_window * block;
  int64_t size = window == windows - 1 ? samples_ - first : per_window * block;
  int64_t at = first + permute_index(position - first, size, key ^ (uint64_t(window + 1) << 32));
  int64_t slot = at / block;
  return slot < blocks ? permute_index(slot, blocks, key) * block + at % block : at;
}

std::vector<int64_t> Sampler::ids(int64_t step) const {
  int64_t epoch = step / steps_, at = step % steps_;
  int64_t first = options_.block > 1 && !options_.same_order ? (options_.rank * steps_ + at) * options_.batch
                                                             : (at * options_.world + options_.rank) * options_.batch;
  uint64_t key = options_.seed * 0x9E3779B97F4A7C15ull + uint64_t(epoch);
  std::vector<int64_t> ids(size_t(options_.batch));
  for (int64_t i = 0; i < options_.batch; ++i) {
    int64_t position = (first + i) % samples_;
    ids[size_t(i)] = options_.shuffle ? shuffled(position, key) : position;
  }
  return ids;
}

}  // namespace xylem
