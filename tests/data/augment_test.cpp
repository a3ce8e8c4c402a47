// SPDX-License-Identifier: Apache-2.0
#include "data/augment.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/util/check.h"

namespace xylem {
namespace {

const Shape kShape{2, 6, 8};

std::vector<uint8_t> picture() {
  std::vector<uint8_t> p(96);
  for (size_t i = 0; i < p.size(); ++i) p[i] = uint8_t(i + 1);  // never black
  return p;
}
std::vector<float> augment(const AugmentOptions& o, int64_t epoch, int64_t id, uint64_t seed = 1) {
  std::vector<float> out(96);
  augment_image(picture().data(), u8, kShape, o, seed, epoch, id, out.data());
  return out;
}

// The picture moved by (dy, dx) with black around it, mirrored if asked: pixel by pixel.
std::vector<float> moved(int64_t dy, int64_t dx, bool flip, const AugmentOptions& o) {
  auto p = picture();
  std::vector<float> out(96);
  for (int64_t c = 0; c < 2; ++c)
    for (int64_t y = 0; y < 6; ++y)
      for (int64_t x = 0; x < 8; ++x) {
        int64_t sy = y + dy, sx = (flip ? 7 - x : x) + dx;
        bool inside = sy >= 0 && sy < 6 && sx >= 0 && sx < 8;
        float value = inside ? float(p[size_t((c * 6 + sy) * 8 + sx)]) / 255 : 0;
        float mean = o.mean.empty() ? 0 : o.mean[size_t(c)], stddev = o.stddev.empty() ? 1 : o.stddev[size_t(c)];
        out[size_t((c * 6 + y) * 8 + x)] = (value - mean) / stddev;
      }
  return out;
}
bool close(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::abs(a[i] - b[i]) > 1e-5f) return false;
  return true;
}

TEST(Augment, WithoutOptionsPixelsAreScaledAlone) { EXPECT_TRUE(close(augment({}, 0, 0), moved(0, 0, false, {}))); }

TEST(Augment, EveryResultIsAMovedAndMirroredPicture) {
  AugmentOptions o{.crop_padding = 2, .flip = true, .mean = {0.1f, 0.2f}, .stddev = {0.5f, 2.0f}};
  std::map<std::tuple<int64_t, int64_t, bool>, int> seen;
  for (int64_t id = 0; id < 2000; ++id) {
    auto out = augment(o, 3, id);
    int matches = 0;
    for (int64_t dy = -2; dy <= 2; ++dy)
      for (int64_t dx = -2; dx <= 2; ++dx)
        for (bool flip : {false, true})
          if (close(out, moved(dy, dx, flip, o))) ++matches, ++seen[{dy, dx, flip}];
    ASSERT_EQ(matches, 1) << "sample " << id;
  }
  EXPECT_EQ(seen.size(), 50u);  // every one of them, about 40 times (sd 6)
  for (auto& [what, count] : seen) EXPECT_NEAR(count, 40, 30);
}

TEST(Augment, DependsOnSeedEpochAndIdAlone) {
  AugmentOptions o{.crop_padding = 3, .flip = true};
  EXPECT_EQ(augment(o, 5, 17, 9), augment(o, 5, 17, 9));
  int other_id = 0, other_epoch = 0, other_seed = 0;
  for (int64_t i = 0; i < 50; ++i) {
    other_id += augment(o, 0, i) != augment(o, 0, i + 1);
    other_epoch += augment(o, i, 0) != augment(o, i + 1, 0);
    other_seed += augment(o, 0, 0, uint64_t(i)) != augment(o, 0, 0, uint64_t(i) + 1);
  }
  EXPECT_GT(other_id, 40);
  EXPECT_GT(other_epoch, 40);
  EXPECT_GT(other_seed, 40);
}

TEST(Augment, FloatPicturesAreNotScaled) {
  std::vector<float> in(96), out(96);
  for (size_t i = 0; i < 96; ++i) in[i] = float(i) - 40;
  augment_image(in.data(), f32, kShape, {.mean = {1, 2}, .stddev = {2, 4}}, 0, 0, 0, out.data());
  for (size_t i = 0; i < 96; ++i) EXPECT_FLOAT_EQ(out[i], i < 48 ? (in[i] - 1) / 2 : (in[i] - 2) / 4);
}

TEST(Augment, PaddingBeyondThePictureLeavesBlack) {
  AugmentOptions o{.crop_padding = 40};
  int black = 0;
  for (int64_t id = 0; id < 50; ++id) {
    auto out = augment(o, 0, id);
    black += std::set<float>(out.begin(), out.end()) == std::set<float>{0.0f};
  }
  EXPECT_GT(black, 30);
}

TEST(Augment, WrongOptionsAreErrors) {
  EXPECT_THROW(augment({.mean = {1, 2, 3}}, 0, 0), Error);
  EXPECT_THROW(augment({.stddev = {1}}, 0, 0), Error);
  std::vector<float> out(96);
  EXPECT_THROW(augment_image(picture().data(), i8, kShape, {}, 0, 0, 0, out.data()), Error);
  EXPECT_THROW(augment_image(picture().data(), u8, {96}, {}, 0, 0, 0, out.data()), Error);
}

}  // namespace
}  // namespace xylem
