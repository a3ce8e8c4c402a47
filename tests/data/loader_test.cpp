// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "data/tokens.h"
#include "tests/support.h"

namespace xylem {
namespace {

using ::testing::HasSubstr;

// Sample i: every pixel i, label i % 10. Reading is slowed at random places, so that threads finish out of order.
class Slow final : public Dataset {
 public:
  explicit Slow(int64_t n, int64_t bad = -1) : n_(n), bad_(bad) { spec_.input = {1, 4, 4}, spec_.classes = 10; }
  int64_t size() const override { return n_; }
  const RecordSpec& spec() const override { return spec_; }
  void read(int64_t id, void* input, void* target) const override {
    if (id == bad_) XY_FAIL("broken on purpose");
    if (id % 7 == 3) std::this_thread::sleep_for(std::chrono::microseconds(300));
    for (int i = 0; i < 16; ++i) static_cast<uint8_t*>(input)[i] = uint8_t(id * 16 + i);
    *static_cast<int64_t*>(target) = id % 10;
    ++reads;
  }
  mutable std::atomic<int64_t> reads = 0;

 private:
  int64_t n_, bad_;
  RecordSpec spec_;
};

struct Plain {
  std::vector<float> input;
  std::vector<int64_t> target, ids;
  bool operator==(const Plain&) const = default;
};
Plain plain(const Batch& b) { return {b.input.to_vector<float>(), b.target.to_vector<int64_t>(), b.ids}; }

LoaderOptions options(int threads, int prefetch = 3) {
  return {.sampler = {.batch = 6, .seed = 11},
          .augment = {.crop_padding = 1, .flip = true, .mean = {0.5f}, .stddev = {0.25f}},
          .threads = threads,
          .prefetch = prefetch};
}

TEST(Loader, BatchesDoNotDependOnThreadsOrPrefetch) {
  std::vector<Plain> expected;
  Loader reference(std::make_shared<Slow>(50), options(0));
  for (int i = 0; i < 30; ++i) expected.push_back(plain(reference.next()));
  for (int threads : {1, 2, 5, 16}) {
    for (int prefetch : {1, 4}) {
      Loader loader(std::make_shared<Slow>(50), options(threads, prefetch));
      for (int i = 0; i < 30; ++i)
        EXPECT_EQ(plain(loader.next()), expected[size_t(i)]) << threads << " threads, step " << i;
    }
  }
}

TEST(Loader, HoldsTheSamplesItNames) {
  Loader loader(std::make_shared<Slow>(50), {.sampler = {.batch = 4, .seed = 1}, .threads = 2});
  Batch b = loader.next();
  ASSERT_EQ(b.input.shape(), (Shape{4, 1, 4, 4}));
  ASSERT_EQ(b.input.dtype(), f32);
  ASSERT_EQ(b.target.shape(), (Shape{4}));
  EXPECT_EQ(b.ids, loader.sampler().ids(0));
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(b.target.to_vector<int64_t>()[size_t(i)], b.ids[size_t(i)] % 10);
    for (int64_t p = 0; p < 16; ++p)
      EXPECT_FLOAT_EQ(b.input.to_vector<float>()[size_t(i * 16 + p)], float(uint8_t(b.ids[size_t(i)] * 16 + p)) / 255);
  }
}

TEST(Loader, ResumesAtAnyStep) {
  Loader whole(std::make_shared<Slow>(50), options(2));
  std::vector<Plain> expected;
  for (int i = 0; i < 25; ++i) expected.push_back(plain(whole.next()));
  EXPECT_EQ(whole.position(), 25);

  for (int threads : {0, 3}) {
    auto data = std::make_shared<Slow>(50);
    Loader loader(data, options(threads));
    loader.set_position(20);  // another epoch, before anything was taken
    for (int i = 20; i < 25; ++i) EXPECT_EQ(plain(loader.next()), expected[size_t(i)]) << threads;
    loader.set_position(3);  // back, while threads are reading ahead
    for (int i = 3; i < 9; ++i) EXPECT_EQ(plain(loader.next()), expected[size_t(i)]) << threads;
    EXPECT_EQ(loader.position(), 9);
    EXPECT_LT(data->reads, 6 * 30) << "resuming must not read its way to the step";
  }
  EXPECT_THROW(whole.set_position(-1), Error);
}

TEST(Loader, BatchesAreTheCallersToKeep) {
  Loader loader(std::make_shared<Slow>(50), options(2, 1));
  std::vector<Batch> kept;
  std::vector<Plain> copies;
  for (int i = 0; i < 10; ++i) {
    kept.push_back(loader.next());
    copies.push_back(plain(kept.back()));
  }
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(plain(kept[i]), copies[i]);
}

TEST(Loader, AReadingErrorNamesTheSampleAndDoesNotHang) {
  for (int threads : {0, 1, 4}) {
    LoaderOptions o = options(threads);
    o.sampler.shuffle = false;
    Loader loader(std::make_shared<Slow>(50, 14), o);
    loader.next();
    loader.next();
    for (int again = 0; again < 2; ++again) {
      try {
        loader.next();
        FAIL() << "sample 14 is in step 2";
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr("sample 14"));
        EXPECT_THAT(e.what(), HasSubstr("step 2"));
        EXPECT_THAT(e.what(), HasSubstr("broken on purpose"));
      }
    }
    loader.set_position(3);
    EXPECT_EQ(loader.next().ids[0], 18);
  }
}

TEST(Loader, CountsItsStalls) {
  Loader loader(std::make_shared<Slow>(50), options(0));
  EXPECT_EQ(loader.stall_seconds(), 0);
  for (int i = 0; i < 4; ++i) loader.next();
  EXPECT_GT(loader.stall_seconds(), 0.0005);
}

TEST(Loader, AugmentationFollowsTheSampleNotTheBatch) {
  // The same sample in the same epoch looks the same in batches of any size, and differs between epochs.
  auto find = [](Loader& loader, int64_t epoch, int64_t id) {
    loader.set_position(epoch * loader.steps_per_epoch());
    for (int64_t s = 0; s < loader.steps_per_epoch(); ++s) {
      Batch b = loader.next();
      for (size_t i = 0; i < b.ids.size(); ++i)
        if (b.ids[i] == id) return b.input[int64_t(i)].to_vector<float>();
    }
    return std::vector<float>();
  };
  LoaderOptions small = options(2), large = options(1);
  large.sampler.batch = 10;
  small.sampler.batch = 5;
  small.augment.crop_padding = large.augment.crop_padding = 3;
  Loader a(std::make_shared<Slow>(50), small), b(std::make_shared<Slow>(50), large);
  int differ = 0;
  for (int64_t id : {0, 7, 33}) {
    auto first = find(a, 0, id);
    ASSERT_FALSE(first.empty());
    EXPECT_EQ(first, find(b, 0, id));
    if (find(a, 1, id) != first) ++differ;
  }
  EXPECT_GE(differ, 2);
}

TEST(Loader, OptionsThatDoNotFitAreErrors) {
  auto flat = array_dataset(zeros({8, 3}), zeros({8}, i64), 2);
  EXPECT_THROW(Loader(flat, {.sampler = {.batch = 2}, .augment = {.flip = true}}), Error);
  EXPECT_THROW(Loader(flat, {.sampler = {.batch = 9}}), Error);
}

TEST(ArrayDataset, LabelsAreChecked) {
  Tensor x = zeros({3, 2});
  EXPECT_THROW(array_dataset(x, from_vector<int64_t>({0, 1, 2}, {3}), 2), Error);
  EXPECT_THROW(array_dataset(x, from_vector<int64_t>({0, -1, 1}, {3}), 2), Error);
  EXPECT_THROW(array_dataset(x, zeros({4}, i64), 2), Error);
  EXPECT_NO_THROW(array_dataset(x, from_vector<int64_t>({0, 1, 1}, {3}), 2));
}

TEST(ArrayDataset, RegressionTargetsKeepTheirShapeAndType) {
  std::vector<float> x(12), y(24);
  for (size_t i = 0; i < 12; ++i) x[i] = float(i);
  for (size_t i = 0; i < 24; ++i) y[i] = float(100 + i);
  Loader loader(array_dataset(from_vector(x, {4, 3}), from_vector(y, {4, 2, 3})),
                {.sampler = {.batch = 4, .shuffle = false}});
  Batch b = loader.next();
  EXPECT_EQ(b.input.to_vector<float>(), x);
  EXPECT_EQ(b.target.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(b.target.to_vector<float>(), y);
}

TEST(TokenDataset, WindowsAreShiftedByOne) {
  Scratch dir;
  std::string text = "abcdefghijklmnopqrstuvwxyz";
  write_byte_tokens(dir / "t.tok", text);
  auto data = token_dataset(dir / "t.tok", 5);
  EXPECT_EQ(data->size(), 5);  // 25 = (26 - 1) / 5 windows
  EXPECT_EQ(data->spec().classes, 256);
  Loader loader(data, {.sampler = {.batch = 5, .shuffle = false}, .threads = 2});
  Batch b = loader.next();
  ASSERT_EQ(b.input.shape(), (Shape{5, 5}));
  ASSERT_EQ(b.input.dtype(), i32);
  auto in = b.input.to_vector<int64_t>(), out = b.target.to_vector<int64_t>();
  for (size_t i = 0; i < 25; ++i) {
    EXPECT_EQ(in[i], text[i]);
    EXPECT_EQ(out[i], text[i + 1]);
  }
}

TEST(TokenDataset, StrideOneOffersEveryOffset) {
  Scratch dir;
  write_byte_tokens(dir / "t.tok", "abcdefghij");
  auto data = token_dataset(dir / "t.tok", 4, 1);
  EXPECT_EQ(data->size(), 6);
  int32_t window[5];
  data->read(5, window, nullptr);
  EXPECT_EQ(std::string(window, window + 5), "fghij");
}

TEST(LoaderCuda, BatchesEqualThoseOfTheCpu) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  for (int threads : {0, 3}) {
    LoaderOptions on_cpu = options(threads), on_gpu = options(threads);
    on_gpu.device = Device::cuda();
    Loader cpu(std::make_shared<Slow>(50), on_cpu), gpu(std::make_shared<Slow>(50), on_gpu);
    std::vector<Batch> kept;
    std::vector<Plain> expected;
    for (int i = 0; i < 40; ++i) {
      if (i == 20) cpu.set_position(7), gpu.set_position(7);
      kept.push_back(gpu.next());
      EXPECT_TRUE(kept.back().input.is_cuda());
      expected.push_back(plain(cpu.next()));
      if (i % 3 == 0) {
        EXPECT_EQ(plain(kept.back()), expected.back());
      }
    }
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(plain(kept[i]), expected[i]) << i;
  }
}

}  // namespace
}  // namespace xylem
