// SPDX-License-Identifier: Apache-2.0
#include "data/augment.h"

#include <algorithm>

#include "core/random/rng.h"
#include "data/dataset.h"

namespace xylem {
namespace {

// Where the pixels of a sample come from: (y + dy, x + dx), then mirrored.
struct Placement {
  int64_t dy = 0, dx = 0;
  bool flip = false;
};

Placement place(const AugmentOptions& o, uint64_t seed, int64_t epoch, int64_t id) {
  constexpr uint64_t kStream = uint64_t(1) << 63;  // apart from other uses of the seed
  Philox4 r = philox(seed, uint64_t(id), uint64_t(epoch) | kStream);
  Placement p;
  if (o.crop_padding > 0) {
    p.dy = int64_t(r.v[0] % uint32_t(2 * o.crop_padding + 1)) - o.crop_padding;
    p.dx = int64_t(r.v[1] % uint32_t(2 * o.crop_padding + 1)) - o.crop_padding;
  }
  p.flip = o.flip && (r.v[2] & 1);
  return p;
}

// One row of a plane [height, width]: convert(source pixel) inside, `outside` where the crop has left the image.
template <class S, class D, class F>
void place_row(const S* plane, int64_t y, int64_t height, int64_t width, const Placement& p, D outside, F&& convert,
               D* out) {
  int64_t sy = y + p.dy, begin = std::clamp<int64_t>(-p.dx, 0, width),
          end = std::clamp<int64_t>(width - p.dx, 0, width);
  if (sy < 0 || sy >= height) begin = end = 0;
  std::fill_n(out, begin, outside);
  int64_t row = sy * width + p.dx;
  for (int64_t x = begin; x < end; ++x) out[x] = convert(plane[row + x]);
  std::fill(out + end, out + width, outside);
  if (p.flip) std::reverse(out, out + width);
}

}  // namespace

void augment_image(const void* src, DType dtype, const Shape& shape, const AugmentOptions& o, uint64_t seed,
                   int64_t epoch, int64_t id, float* dst) {
  XY_CHECK(shape.rank() == 3, "augment: images are [C, H, W], not ", shape);
  XY_CHECK(dtype == u8 || dtype == f32, "augment: pixels are u8 or f32, not ", dtype);
  int64_t channels = shape[0], height = shape[1], width = shape[2];
  XY_CHECK((o.mean.empty() || int64_t(o.mean.size()) == channels) &&
               (o.stddev.empty() || int64_t(o.stddev.size()) == channels),
           "augment: ", o.mean.size(), " means and ", o.stddev.size(), " deviations for ", channels, " channels");
  const Placement placement = place(o, seed, epoch, id);
  for (int64_t c = 0; c < channels; ++c) {
    float scale = 1 / (o.stddev.empty() ? 1.0f : o.stddev[c]), shift = -(o.mean.empty() ? 0.0f : o.mean[c]) * scale;
    if (dtype == u8) scale /= 255;
    auto convert = [scale, shift](auto pixel) { return float(pixel) * scale + shift; };
    auto rows = [&](const auto* plane) {
      for (int64_t y = 0; y < height; ++y)
        place_row(plane, y, height, width, placement, shift, convert, dst + (c * height + y) * width);
    };
    if (dtype == u8)
      rows(static_cast<const uint8_t*>(src) + c * height * width);
    else
      rows(static_cast<const float*>(src) + c * height * width);
  }
}

void augment_mask(const uint8_t* src, const Shape& shape, int64_t classes, const AugmentOptions& o, uint64_t seed,
                  int64_t epoch, int64_t id, int32_t* dst) {
  XY_CHECK(shape.rank() == 2, "augment: masks are [H, W], not ", shape);
  const Placement placement = place(o, seed, epoch, id);
  auto convert = [classes](uint8_t label) {
    if (label == kUnlabelled) return kIgnoredTarget;
    XY_CHECK(label < classes, "the mask has class ", int(label), ", outside [0, ", classes, ")");
    return int32_t(label);
  };
  for (int64_t y = 0; y < shape[0]; ++y)
    place_row(src, y, shape[0], shape[1], placement, kIgnoredTarget, convert, dst + y * shape[1]);
}

}  // namespace xylem
