// SPDX-License-Identifier: Apache-2.0
// Loader: background threads read, augment and stack samples ahead of the training loop. Batch k is a pure function of
// the seed and k, whatever the number of threads.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "data/augment.h"
#include "data/dataset.h"
#include "data/sampler.h"

namespace xylem {

// Classification: input f32 [N, C, H, W], target i64 [N]. Segmentation: target i32 [N, H, W], kIgnoredTarget where a
// pixel has no class or is padding. Regression: target of the stored type, [N, ...]. Tokens: input i32 [N, S], target
// i32 [N, S]. Input of u8 becomes value / 255, of other types the same value as f32.
struct Batch {
  Tensor input = {}, target = {};
  std::vector<int64_t> ids = {};
};

struct LoaderOptions {
  SamplerOptions sampler = {};
  AugmentOptions augment = {};  // images ([C, H, W] of u8 or f32) only
  int threads = 1;              // 0: read in next(), on the caller's thread
  int prefetch = 4;             // batches kept ready
  Device device = {};           // where batches arrive; on a GPU through pinned memory and a copy stream
};

class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;

  // The batch of the next step; it is the caller's to keep. An error in a reading thread is rethrown here and names the
  // sample; calling again throws it again.
  Batch next();
  // The step whose batch next() returns; setting it (to resume) takes effect at once.
  int64_t position() const;
  void set_position(int64_t step);
  int64_t steps_per_epoch() const { return sampler().steps_per_epoch(); }

  const Sampler& sampler() const;
  const Dataset& dataset() const;
  double stall_seconds() const;  // time next() has spent waiting so far

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace xylem
