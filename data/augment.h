// SPDX-License-Identifier: Apache-2.0
// Image augmentation on the CPU. What happens to a sample depends on (seed, epoch, sample id) alone; to its image and
// its mask the same.
#pragma once
#include <cstdint>
#include <vector>

#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace xylem {

struct AugmentOptions {
  int64_t crop_padding = 0;                   // pads with zeros on every side, then crops the original size at random
  bool flip = false;                          // mirrors left to right with probability 1/2
  std::vector<float> mean = {}, stddev = {};  // per channel, in units of the full range; empty: 0 and 1
};

// src: [C, H, W] u8 (scaled to [0, 1]) or f32 -> dst f32: (value - mean) / stddev of the cropped, flipped image.
// Padding counts as black: it becomes -mean / stddev.
void augment_image(const void* src, DType dtype, const Shape& shape, const AugmentOptions& options, uint64_t seed,
                   int64_t epoch, int64_t id, float* dst);

// The mask of such an image: src [H, W] u8 -> dst i32, cropped and flipped alike. Padding and kUnlabelled become
// kIgnoredTarget. Throws naming a class that is not in [0, classes).
void augment_mask(const uint8_t* src, const Shape& shape, int64_t classes, const AugmentOptions& options, uint64_t seed,
                  int64_t epoch, int64_t id, int32_t* dst);

}  // namespace xylem
