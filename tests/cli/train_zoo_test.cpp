// SPDX-License-Identifier: Apache-2.0
// `xylem train` and `xylem export` with every model of the zoo, and segmentation from the data to the ONNX file.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "data/hdf5.h"
#include "models/export/runtime/ort.h"
#include "models/zoo/zoo.h"
#include "tests/cli/program.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using program::xylem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The [model] section of a small one.
std::string model_section(const std::string& name) {
  const std::string small = "[model]\nname = \"" + name + "\"\n";
  if (name == "gpt2") return small + "vocab = 256\ncontext = 16\nlayers = 1\nheads = 2\nwidth = 16\n";
  if (name == "llama")
    return small + "vocab = 256\ncontext = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nwidth = 16\nhidden = 24\n";
  if (name == "vit") return small + "image = 16\npatch = 4\nclasses = 3\nlayers = 1\nheads = 2\nwidth = 16\n";
  if (name == "unet") return small + "classes = 3\nwidth = 8\ndepth = 2\n";
  if (name == "mlp") return small + "in = 768\nhidden = 16\nclasses = 3\n";
  if (name == "resnet18" || name == "resnet50") return small + "width = 4\nclasses = 3\nsmall_images = true\n";
  return small + "channels = 3\nwidth = 8\nclasses = 3\n";
}

// Pictures of 16 x 16, bright in the channel that is their label.
void write_labelled(const std::string& path) {
  constexpr int64_t kPictures = 48;
  std::vector<uint8_t> pixels(kPictures * 3 * 256, 30);
  std::vector<int64_t> labels(kPictures);
  for (int64_t i = 0; i < kPictures; ++i) {
    labels[size_t(i)] = i % 3;
    std::fill_n(pixels.begin() + (i * 3 + i % 3) * 256, 256, uint8_t(180 + i));
  }
  Hdf5Writer file(path);
  file.create("images", {3, 16, 16}, u8, {8});
  file.create("labels", {}, i64, {48});
  file.set_strings("labels", "class_names", {"red", "green", "blue"});
  file.append("images", pixels.data(), kPictures);
  file.append("labels", labels.data(), kPictures);
  file.finish();
}

class TrainZoo : public testing::TestWithParam<std::string> {
 protected:
  // Trains with data that it makes; what the program said is in `said_`.
  void train(const std::string& name, const std::string& more) {
    const RecordSpec::Task task = zoo::create(name)->task();
    std::string data = "kind = \"hdf5\"\nmean = [0.4, 0.4, 0.4]\nstddev = [0.3, 0.3, 0.3]\n", train = "train.h5",
                val = "test.h5";
    if (task == RecordSpec::Task::language_modelling) {
      data = "kind = \"tokens\"\n", train = "train.tokens", val = "val.tokens";
      program::write_tiny_job(dir_ / "data");
    } else if (task == RecordSpec::Task::segmentation) {
      data += "crop_padding = 2\nflip = true\n";
      const Outcome made = xylem("data shapes --train 60 --test 10 --size 32 --out " + (dir_ / "data"));
      ASSERT_EQ(made.code, 0) << made.text;
      EXPECT_THAT(made.text, HasSubstr("3 classes: background, disc, rectangle"));
    } else {
      fs::create_directories(dir_ / "data");
      write_labelled(dir_ / "data/train.h5");
      write_labelled(dir_ / "data/test.h5");
    }
    write_file(dir_ / "run.toml", "[run]\ndevice = \"cpu\"\ndir = \"" + (dir_ / "run") + "\"\n" + model_section(name) +
                                      "[data]\n" + data + "train = \"" + (dir_ / ("data/" + train)) + "\"\nval = \"" +
                                      (dir_ / ("data/" + val)) + "\"\n" + more);
    Outcome o = xylem("train " + (dir_ / "run.toml"));
    said_ = o.text;
    ASSERT_EQ(o.code, 0) << o.text;
    std::istringstream lines(text_of(dir_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) metrics_.push_back(nlohmann::json::parse(line));
  }
  Scratch dir_;
  std::string said_;
  std::vector<nlohmann::json> metrics_;
};
INSTANTIATE_TEST_SUITE_P(Zoo, TrainZoo, testing::ValuesIn(zoo::names()), [](const auto& i) { return i.param; });

TEST_P(TrainZoo, LearnsFromAConfigurationAndExportsWithoutItsData) {
  if (!built_with_hdf5()) GTEST_SKIP() << "built without HDF5";
  train(GetParam(),
        "[train]\nsteps = 24\nglobal_batch = 8\nmicro_batch = 4\nlog_every = 1\ntensorboard = false\n"
        "[optimizer]\nlr = 5e-3\n[schedule]\nkind = \"constant\"\n");
  ASSERT_EQ(metrics_.size(), 24u);
  auto mean_loss = [&](size_t first) {
    double sum = 0;
    for (size_t i = first; i < first + 4; ++i) sum += metrics_[i]["loss"].get<double>();
    return sum / 4;
  };
  EXPECT_LT(mean_loss(20), mean_loss(0));
  EXPECT_TRUE(metrics_.back()["val_loss"].is_number());
#ifdef XY_WITH_ONNX
  fs::remove_all(dir_ / "data");
  const Outcome o = xylem("export " + (dir_ / "run") + " --out " + (dir_ / "bundle"));
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_TRUE(fs::exists(dir_ / "bundle/model.onnx"));
#endif
}

class Segmentation : public TrainZoo {};

TEST_F(Segmentation, ReportsOverlapAndComparesItsExport) {
  if (!built_with_hdf5()) GTEST_SKIP() << "built without HDF5";
  train("unet",
        "[train]\nsteps = 60\nglobal_batch = 8\nlog_every = 20\neval_every = 30\ntensorboard = false\n"
        "[optimizer]\nlr = 1e-2\n");
  EXPECT_THAT(said_, AllOf(HasSubstr("| accuracy "), HasSubstr("| mean IoU "), HasSubstr(" val_mean_iou=")));
  const nlohmann::json& last = metrics_.back();
  EXPECT_LT(last["loss"].get<double>(), 0.6 * metrics_.front()["loss"].get<double>());
  EXPECT_GT(last["val_accuracy"].get<double>(), 0.75);
  EXPECT_GT(last["val_mean_iou"].get<double>(), 0.4);
  EXPECT_LT(last["val_mean_iou"].get<double>(), last["val_accuracy"].get<double>());

  const std::string classes = " --set model.classes=2";
  EXPECT_THAT(xylem("train " + (dir_ / "run.toml") + " --fresh" + classes).text,
              HasSubstr("has 3 classes but model.classes is 2"));
  EXPECT_THAT(xylem("train " + (dir_ / "run.toml") + " --fresh --set data.kind=tokens").text,
              HasSubstr("does not suit the model 'unet', which is for segmentation"));
#ifdef XY_WITH_ONNX
  const Outcome o = xylem("export " + (dir_ / "run") + " --verify --out " + (dir_ / "bundle"));
  EXPECT_THAT(o.text, Not(HasSubstr("TOO FAR")));
  if (OrtSession::available()) {
    EXPECT_EQ(o.code, 0) << o.text;
    EXPECT_THAT(o.text, HasSubstr("accuracy on the validation set"));
  }
#endif
}

}  // namespace
}  // namespace xylem
