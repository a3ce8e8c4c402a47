// SPDX-License-Identifier: Apache-2.0
// Which samples make up step k. The order of an epoch is a keyed permutation that is computed, not stored: any position
// is reached at once, and every rank of any world size agrees on it.
#pragma once
#include <cstdint>
#include <vector>

namespace xylem {

// The image of `index` under a pseudo-random permutation of [0, n): a Feistel network over the next power of four,
// walked until it lands inside (Black and Rogaway, CT-RSA 2002).
int64_t permute_index(int64_t index, int64_t n, uint64_t key);

struct SamplerOptions {
  int64_t batch = 1;  // samples per step and rank
  bool shuffle = true;
  uint64_t seed = 0;
  // The last, incomplete step of an epoch: dropped, or filled up with samples from its start. Either way all ranks
  // take the same number of steps.
  bool drop_last = true;
  int rank = 0, world = 1;
  // Shuffling for storage in blocks of `block` samples: blocks are permuted, then samples within a window of about
  // `window`, and every rank takes one contiguous part of the epoch. 0 or 1: samples are permuted freely. The Loader
  // sets 0 to what the dataset needs.
  int64_t block = 0, window = 0;
  // Steps whose gradients are added up before the model changes: an epoch holds a multiple of them, so that it ends
  // with the same sample however a global batch is divided among steps and ranks (with drop_last).
  int64_t accumulate = 1;
  // Ranks take turns in blocked shuffling too: the samples of a global step do not depend on the number of ranks, and
  // every rank reads every block.
  bool same_order = false;
};

class Sampler {
 public:
  // Throws if an epoch would hold no step.
  Sampler(int64_t samples, const SamplerOptions& options);
  const SamplerOptions& options() const { return options_; }
  int64_t steps_per_epoch() const { return steps_; }
  int64_t dropped() const;  // samples an epoch leaves out
  int64_t padded() const;   // samples an epoch repeats
  int64_t epoch_of(int64_t step) const { return step / steps_; }
  // Sample ids of this rank at global step 0, 1, 2, ... across epochs.
  std::vector<int64_t> ids(int64_t step) const;

 private:
  int64_t shuffled(int64_t position, uint64_t key) const;
  int64_t samples_, steps_;
  SamplerOptions options_;
};

}  // namespace xylem
