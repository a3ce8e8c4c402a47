// SPDX-License-Identifier: Apache-2.0
#include "data/augment.h"

#include <algorithm>

#include "core/random/rng.h"

namespace xylem {

void augment_image(const void* src, DType dtype, const Shape& shape, const AugmentOptions& o, uint64_t seed,
                   int64_t epoch, int64_t id, float* dst) {
  XY_CHECK(shape.rank() == 3, "augment: images are [C, H, W], not ", shape);
  XY_CHECK(dtype == u8 || dtype == f32, "augment: pixels are u8 or f32, not ", dtype);
  int64_t channels = shape[0], height = shape[1], width = shape[2];
  XY_CHECK((o.mean.empty() || int64_t(o.mean.size()) == channels) &&
               (o.stddev.empty() || int64_t(o.stddev.size()) == channels),
           "augment: ", o.mean.size(), " means and ", o.stddev.size(), " deviations for ", channels, " channels");
  constexpr uint64_t kStream = uint64_t(1) << 63;  // apart from other uses of the seed
  Philox4 r = philox(seed, uint64_t(id), uint64_t(epoch) | kStream);
  int64_t dy = 0, dx = 0;
  if (o.crop_padding > 0) {
    dy = int64_t(r.v[0] % uint32_t(2 * o.crop_padding + 1)) - o.crop_padding;
    dx = int64_t(r.v[1] % uint32_t(2 * o.crop_padding + 1)) - o.crop_padding;
  }
  bool flip = o.flip && (r.v[2] & 1);
  for (int64_t c = 0; c < channels; ++c) {
    float scale = 1 / (o.stddev.empty() ? 1.0f : o.stddev[c]), shift = -(o.mean.empty() ? 0.0f : o.mean[c]) * scale;
    if (dtype == u8) scale /= 255;
    for (int64_t y = 0; y < height; ++y) {
      float* out = dst + (c * height + y) * width;
      int64_t sy = y + dy, begin = std::clamp<int64_t>(-dx, 0, width), end = std::clamp<int64_t>(width - dx, 0, width);
      if (sy < 0 || sy >= height) begin = end = 0;
      std::fill_n(out, begin, shift);
      int64_t row = (c * height + sy) * width + dx;
      if (dtype == u8) {
        const uint8_t* in = static_cast<const uint8_t*>(src);
        for (int64_t x = begin; x < end; ++x) out[x] = float(in[row + x]) * scale + shift;
      } else {
        const float* in = static_cast<const float*>(src);
        for (int64_t x = begin; x < end; ++x) out[x] = in[row + x] * scale + shift;
      }
      std::fill(out + end, out + width, shift);
      if (flip) std::reverse(out, out + width);
    }
  }
}

}  // namespace xylem
