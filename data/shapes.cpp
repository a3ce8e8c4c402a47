// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "core/random/rng.h"
#include "data/hdf5.h"
#include "data/prepare.h"

namespace xylem {
namespace {

enum : uint8_t { kBackground, kDisc, kRectangle };

// The random numbers of one picture, one after the other.
class Draw {
 public:
  Draw(uint64_t seed, int64_t picture) : seed_(seed), picture_(uint64_t(picture)) {}
  double uniform(double low, double high) { return low + (high - low) * uniform01(philox(seed_, picture_, n_++).v[0]); }
  bool coin() { return uniform(0, 1) < 0.5; }

 private:
  uint64_t seed_, picture_, n_ = 0;
};

struct Figure {
  uint8_t label = kBackground;
  double y = 0, x = 0, half_height = 0, half_width = 0;
  std::array<double, 3> colour = {};

  bool covers(double py, double px) const {
    double dy = (py - y) / half_height, dx = (px - x) / half_width;
    return label == kDisc ? dy * dy + dx * dx <= 1 : std::abs(dy) <= 1 && std::abs(dx) <= 1;
  }
};

Figure draw_figure(Draw& draw, int64_t size) {
  Figure f{.label = draw.coin() ? kDisc : kRectangle};
  f.y = draw.uniform(0.1, 0.9) * double(size);
  f.x = draw.uniform(0.1, 0.9) * double(size);
  f.half_height = f.half_width = draw.uniform(0.12, 0.3) * double(size);
  if (f.label == kRectangle) f.half_width *= draw.uniform(0.6, 1.4);
  for (double& c : f.colour) c = draw.uniform(90, 255);
  return f;
}

// pixels [3, size, size], mask [size, size]: up to three figures, later ones in front, on a dark ground, with noise.
void draw_picture(uint64_t seed, int64_t picture, int64_t size, uint8_t* pixels, uint8_t* mask) {
  Draw draw(seed, picture);
  std::array<double, 3> ground;
  for (double& c : ground) c = draw.uniform(0, 80);
  std::vector<Figure> figures(size_t(draw.uniform(1, 4)));
  for (Figure& f : figures) f = draw_figure(draw, size);
  for (int64_t y = 0; y < size; ++y)
    for (int64_t x = 0; x < size; ++x) {
      auto front = std::find_if(figures.rbegin(), figures.rend(),
                                [&](const Figure& f) { return f.covers(double(y) + 0.5, double(x) + 0.5); });
      const bool hit = front != figures.rend();
      const int64_t at = y * size + x;
      mask[at] = hit ? front->label : uint8_t(kBackground);
      for (size_t c = 0; c < 3; ++c) {
        double value = (hit ? front->colour[c] : ground[c]) + draw.uniform(-20, 20);
        pixels[int64_t(c) * size * size + at] = uint8_t(std::clamp(value, 0.0, 255.0));
      }
    }
}

void write_pictures(const std::string& path, uint64_t seed, int64_t count, int64_t size) {
  Hdf5Writer file(path);
  const int64_t plane = size * size;
  file.create("images", {3, size, size}, u8, {std::max<int64_t>(1, (int64_t(256) << 10) / (3 * plane))});
  file.set_strings("images", "layout", {"NCHW"});
  file.create("masks", {size, size}, u8, {std::max<int64_t>(1, (int64_t(256) << 10) / plane)});
  file.set_strings("masks", "class_names", {"background", "disc", "rectangle"});
  std::vector<uint8_t> pixels(size_t(3 * plane)), mask(static_cast<size_t>(plane));
  for (int64_t i = 0; i < count; ++i) {
    draw_picture(seed, i, size, pixels.data(), mask.data());
    file.append("images", pixels.data(), 1);
    file.append("masks", mask.data(), 1);
  }
  file.finish();
}

}  // namespace

void prepare_shapes(const std::string& out, const ShapesOptions& options) {
  XY_CHECK(options.train > 0 && options.test > 0 && options.size > 0,
           "shapes needs pictures and pixels; got train = ", options.train, ", test = ", options.test,
           ", size = ", options.size);
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(out, error);
  XY_CHECK(!error, "cannot make the folder ", out, ": ", error.message());
  write_pictures((fs::path(out) / "train.h5").string(), options.seed, options.train, options.size);
  write_pictures((fs::path(out) / "test.h5").string(), ~options.seed, options.test, options.size);
}

}  // namespace xylem
