// SPDX-License-Identifier: Apache-2.0
// A trained network, fine-tuned with 8-bit numbers by the trainer.
#include <gmock/gmock.h>

#include <filesystem>

#include "core/autograd/autograd.h"
#include "data/hdf5.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/reader.h"
#include "models/quantize/fake_quantizer.h"
#include "models/train/qat.h"
#include "models/train/task.h"
#include "models/train/trainer.h"
#include "ops/ops.h"
#include "tests/support.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

class QuantizedRun : public testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_hdf5()) GTEST_SKIP() << "built without HDF5";
    write("train.h5", 400, 1), write("val.h5", 200, 2);
  }

  // Stripes across, stripes down, or a blob, in noise.
  void write(const std::string& name, int64_t n, uint64_t seed) {
    Tensor noise = sample_uniform({n, 144}, 0, 110, seed);
    std::vector<uint8_t> pixels;
    std::vector<int64_t> labels;
    auto v = noise.to_vector<double>();
    for (int64_t i = 0; i < n; ++i) {
      labels.push_back(i % 3);
      for (int y = 0; y < 12; ++y)
        for (int x = 0; x < 12; ++x) {
          bool on = i % 3 == 0 ? y % 4 < 2 : i % 3 == 1 ? x % 4 < 2 : (x - 6) * (x - 6) + (y - 6) * (y - 6) < 12;
          pixels.push_back(uint8_t(v[size_t(i * 144 + y * 12 + x)] + (on ? 80 : 0)));
        }
    }
    Hdf5Writer file((dir_ / name).string());
    file.create("images", {1, 12, 12}, u8, {64});
    file.create("labels", {}, i64, {64});
    file.append("images", pixels.data(), n);
    file.append("labels", labels.data(), n);
    file.finish();
  }

  TrainConfig config(const std::string& run, const std::vector<std::string>& more = {}) {
    std::vector<std::string> sets = {"run.dir=" + (dir_ / run).string(), "data.train=" + (dir_ / "train.h5").string(),
                                     "data.val=" + (dir_ / "val.h5").string()};
    sets.insert(sets.end(), more.begin(), more.end());
    return parse_config(R"(
[run]
device = "cpu"
threads = 1
[model]
name = "mobilenet_small"
classes = 3
width = 8
blocks = 1
stages = 2
[data]
kind = "hdf5"
[train]
steps = 60
global_batch = 32
tensorboard = false
[optimizer]
lr = 2e-2
)",
                        sets);
  }
  std::vector<std::string> fine_tune() {
    return {"run.init=" + (dir_ / "float").string(), "train.steps=20", "optimizer.lr=1e-3", "quantize.format=int8",
            "quantize.small_layers=true"};
  }
  double accuracy(ZooModel& model, TrainConfig c) {
    c.quantize.format = "none";
    Task task = make_task(c, Device::cpu());
    NoGrad guard;
    model.eval();
    double right = 0;
    for (int64_t i = 0; i < 4; ++i) {
      Batch batch = task.val->next();
      int64_t n = std::min<int64_t>(64, 200 - 64 * i);
      Tensor logits = model(batch.input.narrow(0, 0, n));
      right += sum(eq(argmax(logits), batch.target.narrow(0, 0, n)).to(f32)).item();
    }
    return right / 200;
  }

  Scratch scratch_;
  const fs::path dir_ = scratch_.path();
};

TEST_F(QuantizedRun, FineTunesResumesAndLoads) {
  TrainResult plain = train(config("float"));
  ASSERT_GT(*plain.val_accuracy, 0.9);
  TrainConfig c = config("int8", fine_tune());
  TrainResult tuned = train(c);
  EXPECT_GT(*tuned.val_accuracy, *plain.val_accuracy - 0.03);

  // The checkpoint gives the same model again, its scales included.
  auto model = make_model(c);
  std::string folder = find_checkpoint(c.run.dir);
  auto weights = load_weights(folder);
  load_state_dict(*model, weights);
  finish_quantization(*model, c, 20);
  EXPECT_NEAR(accuracy(*model, c), *tuned.val_accuracy, 1e-6);
  auto quantizers = quantize::quantizers_of(*model);
  EXPECT_EQ(quantizers.size(), 13u);  // inputs and weights of the stem, 2 x 2 layers and the head, and the pool's input
  for (auto& [name, q] : quantizers) EXPECT_TRUE(q->frozen()) << name;
  for (const NamedTensor& t : weights) EXPECT_THAT(t.name, Not(HasSubstr("running")));  // folded

  // Stopped in between and resumed: the same weights and scales, bit for bit.
  TrainConfig first = config("again", fine_tune());
  first.checkpoint.every = 10;
  train(first);
  for (const char* late : {"step_00000020"}) fs::remove_all(fs::path(first.run.dir) / "checkpoints" / late);
  TrainResult resumed = train(first, Start::resume);
  EXPECT_EQ(resumed.step, 20);
  auto again = load_weights(find_checkpoint(first.run.dir));
  ASSERT_EQ(again.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_EQ(again[i].tensor.to_vector<float>(), weights[i].tensor.to_vector<float>()) << weights[i].name;
}

TEST_F(QuantizedRun, StartsLaterWithFrozenBatchNorms) {
  TrainConfig c = config("late", {"quantize.format=int8", "quantize.small_layers=true", "quantize.start=40",
                                  "quantize.freeze=50", "quantize.batch_norms=freeze", "quantize.observer=percentile"});
  TrainResult r = train(c);
  EXPECT_GT(*r.val_accuracy, 0.85);
  auto model = make_model(c);
  load_state_dict(*model, load_weights(find_checkpoint(c.run.dir)));
  finish_quantization(*model, c, 60);
  EXPECT_NEAR(accuracy(*model, c), *r.val_accuracy, 1e-6);
  std::vector<std::string> names;
  for (const NamedTensor& b : model->buffers()) names.push_back(b.name);
  EXPECT_THAT(names, Contains("bn.running_mean"));
}

TEST_F(QuantizedRun, ScalesAreTrained) {
  train(config("float"));
  auto more = fine_tune();
  more.push_back("quantize.learned=true");
  TrainConfig c = config("learned", more);
  TrainResult r = train(c);
  EXPECT_GT(*r.val_accuracy, 0.85);
  auto weights = load_weights(find_checkpoint(c.run.dir));
  for (const NamedTensor& t : weights)
    if (t.name == "stem.weight_quantizer.log_scale") {
      for (const NamedTensor& s : weights)
        if (s.name == "stem.weight_quantizer.scale") {
          auto log_scale = t.tensor.to_vector<double>(), scale = s.tensor.to_vector<double>();
          for (size_t i = 0; i < scale.size(); ++i) EXPECT_NEAR(scale[i], std::exp(log_scale[i]), 1e-3 * scale[i]);
          return;
        }
    }
  FAIL() << "no scales in the checkpoint";
}

TEST_F(QuantizedRun, RefusesWhatCannotBe) {
  auto error = [&](const std::vector<std::string>& sets) { return error_of([&] { config("x", sets); }); };
  EXPECT_THAT(error({"quantize.format=int8", "quantize.start=5"}), HasSubstr("batch_norms = \"freeze\""));
  EXPECT_THAT(error({"quantize.format=int4"}), HasSubstr("weights_only"));
  EXPECT_THAT(error({"quantize.format=int9"}), HasSubstr("nearest is \"int"));
  EXPECT_THAT(error({"quantize.learned=true", "quantize.freeze=5"}), HasSubstr("learned scales"));
}

}  // namespace
}  // namespace xylem
