// SPDX-License-Identifier: Apache-2.0
#include "data/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/util/check.h"
#include "tests/support.h"

namespace xylem {
namespace {

using ::testing::HasSubstr;

// Smooth, so that JPEG keeps it well.
Image picture(int64_t height, int64_t width, int64_t channels) {
  Image image{.height = height, .width = width, .channels = channels, .pixels = {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < channels; ++c)
        image.pixels.push_back(uint8_t(120 + 50 * std::sin(double(x) / 9 + double(c)) + 50 * std::cos(double(y) / 7)));
  return image;
}
double mean_difference(const Image& a, const Image& b) {
  EXPECT_EQ(a.pixels.size(), b.pixels.size());
  double sum = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) sum += std::abs(int(a.pixels[i]) - int(b.pixels[i]));
  return sum / double(a.pixels.size());
}
class Images : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_images()) GTEST_SKIP() << "needs libjpeg and libpng";
  }
  Scratch dir;
};

TEST_F(Images, PngIsExact) {
  for (int64_t channels : {1, 3}) {
    Image image = picture(13, 31, channels);
    write_image(dir / "a.png", image);
    Image back = read_image(dir / "a.png", channels);
    EXPECT_EQ(back.height, 13);
    EXPECT_EQ(back.width, 31);
    EXPECT_EQ(back.channels, channels);
    EXPECT_EQ(back.pixels, image.pixels);
  }
  write_image(dir / "gray.png", picture(5, 5, 1));
  Image rgb = read_image(dir / "gray.png");
  EXPECT_EQ(rgb.channels, 3);
  EXPECT_EQ(rgb.pixels[0], rgb.pixels[2]);
}

TEST_F(Images, JpegIsClose) {
  for (int64_t channels : {1, 3}) {
    Image image = picture(45, 62, channels);
    write_image(dir / "a.jpg", image);
    Image back = read_image(dir / "a.jpg", channels);
    EXPECT_EQ(back.height, 45);
    EXPECT_EQ(back.width, 62);
    EXPECT_LT(mean_difference(back, image), 2.5);
  }
}

TEST_F(Images, LargeJpegsAreDecodedSmallerButNotTooSmall) {
  Image image = picture(160, 240, 3);
  write_image(dir / "a.jpg", image);
  for (auto [at_least, height] : {std::pair(20, 20), {21, 40}, {40, 40}, {41, 80}, {80, 80}, {81, 160}, {500, 160}}) {
    Image small = read_image(dir / "a.jpg", 3, at_least);
    EXPECT_EQ(small.height, height) << at_least;
    EXPECT_LT(mean_difference(resize_image(small, 20, 30), resize_image(image, 20, 30)), 3) << at_least;
  }
}

TEST_F(Images, DamageIsAnErrorThatNamesTheFile) {
  write_image(dir / "a.jpg", picture(64, 64, 3));
  write_image(dir / "a.png", picture(64, 64, 3));
  for (std::string name : {"a.jpg", "a.png"}) {
    std::string bytes = read_file(dir / name);
    for (double part : {0.05, 0.5, 0.9}) {
      std::string cut = "cut-" + name;
      write_file(dir / cut, bytes.substr(0, size_t(double(bytes.size()) * part)));
      EXPECT_THAT(error_of([&] { read_image(dir / cut); }), HasSubstr(cut)) << part;
    }
  }
  write_file(dir / "text.jpg", "hello");
  EXPECT_THAT(error_of([&] { read_image(dir / "text.jpg"); }), HasSubstr("neither a JPEG nor a PNG"));
  write_file(dir / "empty.jpg", "");
  EXPECT_THAT(error_of([&] { read_image(dir / "empty.jpg"); }), HasSubstr("empty"));
  EXPECT_THAT(error_of([&] { read_image(dir / "none.jpg"); }), HasSubstr("No such file"));
  EXPECT_THROW(read_image(dir / "a.png", 4), Error);
  EXPECT_THROW(write_image(dir / "a.bmp", picture(2, 2, 3)), Error);
}

TEST(Resize, SameSizeIsTheSamePicture) {
  Image image = picture(9, 14, 3);
  EXPECT_EQ(resize_image(image, 9, 14).pixels, image.pixels);
}

TEST(Resize, HalvingAveragesWithTriangleWeights) {
  // Step 2, reach 2: the weights at distances 1/2 and 3/2 are 3/8 and 1/8.
  Image row{.height = 1, .width = 8, .channels = 1, .pixels = {0, 80, 160, 240, 16, 8, 200, 40}};
  auto half = resize_image(row, 1, 4).pixels;
  EXPECT_EQ(half[1], uint8_t(std::lround((80 + 3 * 160 + 3 * 240 + 16) / 8.0)));
  EXPECT_EQ(half[2], uint8_t(std::lround((240 + 3 * 16 + 3 * 8 + 200) / 8.0)));
  EXPECT_EQ(half[0], uint8_t(std::lround((3 * 0 + 3 * 80 + 160) / 7.0)));  // the edge shares its weight
}

TEST(Resize, DoublingInterpolates) {
  Image column{.height = 2, .width = 1, .channels = 1, .pixels = {10, 50}};
  EXPECT_EQ(resize_image(column, 4, 1).pixels, (std::vector<uint8_t>{10, 20, 40, 50}));
}

TEST(Resize, ManyPixelsToOneIsAWeightedMean) {
  Image image = picture(50, 70, 1);
  Image flat =
      resize_image(Image{.height = 40, .width = 30, .channels = 1, .pixels = std::vector<uint8_t>(1200, 77)}, 3, 2);
  for (uint8_t p : flat.pixels) EXPECT_EQ(p, 77);
  EXPECT_THROW(resize_image(image, 0, 3), Error);
}

TEST(Resize, CenterSquareKeepsTheMiddle) {
  Image wide{.height = 2, .width = 5, .channels = 1, .pixels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}};
  EXPECT_EQ(center_square(wide).pixels, (std::vector<uint8_t>{1, 2, 6, 7}));
  Image tall{.height = 4, .width = 2, .channels = 1, .pixels = {0, 1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(center_square(tall).pixels, (std::vector<uint8_t>{2, 3, 4, 5}));
}

}  // namespace
}  // namespace xylem
