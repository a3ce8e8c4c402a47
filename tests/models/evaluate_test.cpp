// SPDX-License-Identifier: Apache-2.0
#include "models/loop/evaluate.h"

#include <gmock/gmock.h>

#include <cmath>

#include "models/zoo/mlp.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::HasSubstr;

// Its images are the logits.
struct Mirror : ZooModel {
  XY_MEMBERS()
  RecordSpec::Task task() const override { return RecordSpec::Task::segmentation; }
  int64_t classes() const override { return 3; }
  Tensor example() const override { return zeros({1, 3, 1, 4}); }
  Tensor classes_last(const Tensor& logits) const override { return logits.permute({0, 2, 3, 1}); }
  Tensor forward(const Tensor& images) override { return images; }
};

// Pictures of four pixels; what the model sees there, and what is there.
class Pictures final : public Dataset {
 public:
  Pictures(std::vector<std::vector<int>> seen, std::vector<std::vector<int>> there)
      : seen_(std::move(seen)), there_(std::move(there)) {
    spec_ = {.task = RecordSpec::Task::segmentation,
             .input = {3, 1, 4},
             .input_dtype = f32,
             .target = {1, 4},
             .target_dtype = u8,
             .classes = 3};
  }
  int64_t size() const override { return int64_t(seen_.size()); }
  const RecordSpec& spec() const override { return spec_; }
  void read(int64_t id, void* input, void* target) const override {
    for (int p = 0; p < 4; ++p) {
      for (int c = 0; c < 3; ++c) static_cast<float*>(input)[4 * c + p] = seen_[size_t(id)][size_t(p)] == c ? 2.f : 0.f;
      static_cast<uint8_t*>(target)[p] = uint8_t(there_[size_t(id)][size_t(p)]);
    }
  }

 private:
  std::vector<std::vector<int>> seen_, there_;
  RecordSpec spec_;
};

LoaderOptions in_order(int64_t batch) {
  return {.sampler = {.batch = batch, .shuffle = false, .drop_last = false}, .threads = 0};
}

TEST(Evaluate, PixelsCountOnceWhateverTheBatch) {
  const int x = kUnlabelled;
  auto set = std::make_shared<Pictures>(std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 1, 0, 0}, {0, 0, 0, 0}},
                                        std::vector<std::vector<int>>{{0, 0, 1, 0}, {x, 1, 1, x}, {x, x, x, x}});
  // Six pixels count, four of them right. Class 0: 2 of 4 (two hits, one missed, one too many); class 1: 2 of 4;
  // class 2 occurs nowhere.
  const double right = std::log(std::exp(2) + 2) - 2, wrong = std::log(std::exp(2) + 2);
  for (int64_t batch : {1, 2, 3}) {
    Mirror model;
    Loader loader(set, in_order(batch));
    const Evaluation e = evaluate(model, loader);
    EXPECT_NEAR(e.loss, (4 * right + 2 * wrong) / 6, 1e-6) << batch;
    EXPECT_DOUBLE_EQ(*e.accuracy, 4.0 / 6) << batch;
    EXPECT_DOUBLE_EQ(*e.mean_iou, 0.5) << batch;
    EXPECT_TRUE(model.training());
  }
  // The first picture alone.
  Mirror model;
  Loader loader(set, in_order(2));
  const Evaluation e = evaluate(model, loader, {.samples = 1});
  EXPECT_DOUBLE_EQ(*e.accuracy, 0.75);
  EXPECT_DOUBLE_EQ(*e.mean_iou, (2.0 / 3 + 1.0 / 2) / 2);
}

TEST(Evaluate, WithoutACountedTargetThereIsNoNan) {
  const int x = kUnlabelled;
  auto set = std::make_shared<Pictures>(std::vector<std::vector<int>>{{0, 0, 1, 1}},
                                        std::vector<std::vector<int>>{{x, x, x, x}});
  Mirror model;
  Loader loader(set, in_order(1));
  const Evaluation e = evaluate(model, loader);
  EXPECT_EQ(e.loss, 0);
  EXPECT_EQ(*e.accuracy, 0);
  EXPECT_EQ(*e.mean_iou, 0);
}

TEST(Evaluate, NeedsALoaderThatGoesThroughTheDataOnce) {
  zoo::Mlp model({.in = 4, .classes = 3});
  Loader shuffled(array_dataset(sample_normal({6, 4}).to(f32), sample_index({6}, 3), 3), {.sampler = {.batch = 2}});
  EXPECT_THAT(error_of([&] { evaluate(model, shuffled); }), HasSubstr("shuffle = false, drop_last = false"));
}

}  // namespace
}  // namespace xylem
