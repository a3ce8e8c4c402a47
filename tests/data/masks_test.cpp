// SPDX-License-Identifier: Apache-2.0
// Segmentation: images with a class for every pixel, drawn by `xylem data shapes`.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <set>

#include "data/hdf5.h"
#include "data/loader.h"
#include "data/prepare.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::HasSubstr;

class Masks : public testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_hdf5()) GTEST_SKIP() << "built without HDF5";
  }
  // One picture of two classes and an unlabelled pixel, red where class 1 is.
  std::string one_picture(uint8_t unknown = kUnlabelled) {
    std::vector<uint8_t> mask(36), pixels(3 * 36);
    for (size_t p = 0; p < 36; ++p) mask[p] = uint8_t(p % 5 == 0 || p > 30), pixels[p] = mask[p] ? 255 : 100;
    mask[0] = unknown, pixels[0] = 50;
    Hdf5Writer file(dir_ / "one.h5");
    file.create("images", {3, 6, 6}, u8, {1});
    file.create("masks", {6, 6}, u8, {1});
    file.set_strings("masks", "class_names", {"ground", "thing"});
    file.append("images", pixels.data(), 1);
    file.append("masks", mask.data(), 1);
    file.finish();
    return dir_ / "one.h5";
  }
  Scratch dir_;
};

TEST_F(Masks, AreCroppedAndFlippedLikeTheirImages) {
  Loader loader(hdf5_masks(one_picture()),
                {.sampler = {.batch = 1, .seed = 3}, .augment = {.crop_padding = 2, .flip = true}, .threads = 2});
  std::set<std::vector<int32_t>> different;
  for (int epoch = 0; epoch < 40; ++epoch) {
    const Batch b = loader.next();
    ASSERT_EQ(b.target.dtype(), i32);
    ASSERT_EQ(b.target.shape(), (Shape{1, 6, 6}));
    const std::vector<float> red = b.input.narrow(1, 0, 1).to_vector<float>();
    const std::vector<int32_t> label = b.target.to_vector<int32_t>();
    for (size_t p = 0; p < 36; ++p) {
      const int colour = int(std::lround(red[p] * 255));  // 0 is padding
      EXPECT_EQ(label[p], colour == 255 ? 1 : colour == 100 ? 0 : kIgnoredTarget) << "pixel " << p;
    }
    different.insert(label);
  }
  EXPECT_GT(different.size(), 10u);
}

TEST_F(Masks, MistakesInTheFileAreNamed) {
  Loader loader(hdf5_masks(one_picture(7)), {.sampler = {.batch = 1}, .threads = 0});
  EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("the mask has class 7, outside [0, 2)"));
  auto error = [&](const Shape& masks, DType dtype, const std::vector<std::string>& names) {
    std::vector<uint8_t> zeros(64);
    Hdf5Writer file(dir_ / "bad.h5");
    file.create("images", {1, 2, 3}, u8, {1});
    file.create("masks", masks, dtype, {1});
    if (!names.empty()) file.set_strings("masks", "class_names", names);
    file.append("images", zeros.data(), 1);
    file.append("masks", zeros.data(), 1);
    file.finish();
    return error_of([&] { hdf5_masks(dir_ / "bad.h5"); });
  };
  EXPECT_EQ(error({2, 3}, u8, {"a"}), "no error");
  EXPECT_THAT(error({3, 2}, u8, {"a"}), HasSubstr("'masks' should be u8 [1, 2, 3]"));
  EXPECT_THAT(error({2, 3}, i32, {"a"}), HasSubstr("but is i32 [1, 2, 3]"));
  EXPECT_THAT(error({2, 3}, u8, {}), HasSubstr("'class_names' of 'masks' has 0 names"));
}

TEST_F(Masks, DrawnShapesAreTheSameEveryTime) {
  prepare_shapes(dir_ / "a", {.train = 30, .test = 5, .size = 32});
  prepare_shapes(dir_ / "b", {.train = 30, .test = 5, .size = 32});
  prepare_shapes(dir_ / "c", {.train = 30, .test = 5, .size = 32, .seed = 1});
  auto read = [&](const std::string& file) {
    Loader loader(hdf5_masks(dir_ / file),
                  {.sampler = {.batch = 5, .shuffle = false, .drop_last = false}, .threads = 0});
    std::vector<int32_t> labels;
    std::vector<float> pixels;
    for (int64_t i = 0; i < loader.steps_per_epoch(); ++i) {
      const Batch b = loader.next();
      for (int32_t l : b.target.to_vector<int32_t>()) labels.push_back(l);
      for (float p : b.input.to_vector<float>()) pixels.push_back(p);
    }
    return std::pair(labels, pixels);
  };
  const auto a = read("a/train.h5");
  EXPECT_EQ(a, read("b/train.h5"));
  EXPECT_NE(a.first, read("c/train.h5").first);
  const auto test = read("a/test.h5").first;
  EXPECT_FALSE(std::equal(test.begin(), test.end(), a.first.begin()));
  // All classes occur, the ground most of all.
  std::array<size_t, 3> count = {};
  for (int32_t l : a.first) ++count.at(size_t(l));
  for (size_t n : count) EXPECT_GT(n, a.first.size() / 50);
  EXPECT_GT(count[0], std::max(count[1], count[2]));
  EXPECT_EQ(hdf5_masks(dir_ / "a/train.h5")->spec().class_names,
            (std::vector<std::string>{"background", "disc", "rectangle"}));
  EXPECT_THAT(error_of([&] { prepare_shapes(dir_ / "d", {.size = 0}); }), HasSubstr("size = 0"));
}

}  // namespace
}  // namespace xylem
