// SPDX-License-Identifier: Apache-2.0
// Runs the built `xylem` program as a user would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/device/device.h"
#include "data/hdf5.h"
#include "tests/cli/program.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using program::xylem;

class TrainCli : public testing::Test {
 protected:
  void SetUp() override {
    program::write_tiny_job(dir_,
                            "[train]\nsteps = 20\nglobal_batch = 4\nmicro_batch = 2\nlog_every = 5\n"
                            "[optimizer]\nlr = 1e-2\n[checkpoint]\nevery = 10\n");
  }
  Outcome train(const std::string& more = "") { return xylem("train " + (dir_ / "tiny.toml").string() + " " + more); }
  fs::path run() const { return dir_ / "run"; }
  fs::path checkpoint(int step) const { return program::checkpoint(run(), step); }
  std::vector<nlohmann::json> metrics() const {
    std::istringstream lines(text_of(run() / "metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  Scratch scratch_;
  const fs::path dir_ = scratch_.path();
};

TEST(Cli, VersionHelpAndDoctor) {
  EXPECT_THAT(xylem("--version").text, HasSubstr("xylem 0."));
  EXPECT_EQ(xylem("--version").code, 0);
  EXPECT_NE(xylem("").code, 0);
  EXPECT_NE(xylem("trian").code, 0);
  Outcome doctor = xylem("doctor");
  EXPECT_EQ(doctor.code, 0);
  EXPECT_THAT(doctor.text, AllOf(HasSubstr("compiler"), HasSubstr("cuDNN"), HasSubstr("NCCL"), HasSubstr("MPI"),
                                 HasSubstr("HDF5"), HasSubstr("ONNX Runtime"), HasSubstr("problems")));
  EXPECT_THAT(xylem("train --help-config").text, HasSubstr("global_batch = 32"));
}

TEST_F(TrainCli, TrainsAndLeavesItsRecords) {
  Outcome o = train();
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("step 20/20 | loss"), HasSubstr("final: step=20 val_loss="), Not(HasSubstr("\r"))));
  auto all = metrics();
  std::vector<int> steps;
  for (auto& m : all) {
    steps.push_back(m["step"]);
    for (const char* key : {"loss", "lr", "grad_norm", "tokens_per_s"}) EXPECT_TRUE(m[key].is_number()) << key;
  }
  EXPECT_THAT(steps, testing::ElementsAre(1, 5, 10, 15, 20));
  EXPECT_NEAR(all[0]["loss"].get<double>(), std::log(256), 0.1);
  EXPECT_LT(all[4]["loss"].get<double>(), 4);
  EXPECT_TRUE(all[4].contains("val_loss"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json", "DONE"})
    EXPECT_TRUE(fs::exists(checkpoint(20) / file)) << file;
  EXPECT_THAT(text_of(run() / "config.toml"), HasSubstr("global_batch = 4"));
  EXPECT_THAT(text_of(run() / "loss.svg"), HasSubstr("</svg>"));

  Outcome text = xylem("generate " + run().string() + " --prompt 'And it' --tokens 8 --seed 3 --device cpu");
  EXPECT_EQ(text.code, 0) << text.text;
  EXPECT_EQ(text.text.substr(0, 6), "And it");
  EXPECT_EQ(text.text.size(), 6u + 8 + 1);

  EXPECT_THAT(train().text, HasSubstr("the run is complete"));
  EXPECT_THAT(train("--fresh").text, HasSubstr("moved the earlier run"));
  EXPECT_TRUE(fs::exists(run().string() + ".1/metrics.jsonl"));
}

TEST_F(TrainCli, ResumesBitExactly) {
  ASSERT_EQ(train().code, 0);
  std::string model = text_of(checkpoint(20) / "model.safetensors"),
              optimizer = text_of(checkpoint(20) / "optimizer.safetensors"),
              ema = text_of(checkpoint(20) / "ema.safetensors"), state = text_of(checkpoint(20) / "state.json");
  auto losses = metrics();
  fs::remove_all(checkpoint(20));
  Outcome o = train("--resume");
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("resuming after step 10 of 20"));
  EXPECT_TRUE(text_of(checkpoint(20) / "model.safetensors") == model);
  EXPECT_TRUE(text_of(checkpoint(20) / "optimizer.safetensors") == optimizer);
  EXPECT_TRUE(text_of(checkpoint(20) / "ema.safetensors") == ema);
  EXPECT_TRUE(text_of(checkpoint(20) / "state.json") == state);
  auto again = metrics();
  ASSERT_EQ(again.size(), losses.size());
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i]["loss"], losses[i]["loss"]);
    EXPECT_EQ(again[i]["grad_norm"], losses[i]["grad_norm"]);
  }
}

TEST_F(TrainCli, EveryPrecisionAndOptimizerLearns) {
  for (const char* more : {"--set train.precision=bf16", "--set train.precision=fp16", "--set train.precision=tf32",
                           "--set optimizer.name=sgd --set optimizer.lr=0.3 --set schedule.kind=wsd",
                           "--set optimizer.name=lion --set optimizer.lr=2e-3 --set optimizer.beta2=0.95",
                           "--set optimizer.name=muon --set optimizer.lr=1e-2 --set optimizer.iterations=4",
                           "--set data.workers=0 --set ema.decay=0 --set train.tensorboard=false"}) {
    Outcome o = train(std::string("--fresh --set train.steps=40 ") + more);
    ASSERT_EQ(o.code, 0) << more << "\n" << o.text;
    EXPECT_LT(metrics().back()["loss"].get<double>(), 4.8) << more;
  }
}

TEST_F(TrainCli, ResumesBitExactlyInSixteenBits) {
  for (const char* precision : {"bf16", "fp16"}) {
    std::string more = std::string("--set train.precision=") + precision;
    ASSERT_EQ(train("--fresh " + more).code, 0);
    std::string model = text_of(checkpoint(20) / "model.safetensors"),
                optimizer = text_of(checkpoint(20) / "optimizer.safetensors");
    fs::remove_all(checkpoint(20));
    ASSERT_EQ(train(more).code, 0);
    EXPECT_TRUE(text_of(checkpoint(20) / "model.safetensors") == model) << precision;
    EXPECT_TRUE(text_of(checkpoint(20) / "optimizer.safetensors") == optimizer) << precision;
  }
}

TEST_F(TrainCli, CtrlCSavesAndSaysHowToGoOn) {
  program::Started job({"train", dir_ / "tiny.toml", "--set", "train.steps=1000000"}, dir_ / "log");
  ASSERT_TRUE(job.says("step       5/")) << job.text();
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_THAT(job.text(), AllOf(HasSubstr("stopped after step"), HasSubstr("to go on: xylem train"),
                                HasSubstr("--set train.steps=1000000")));
  int step = metrics().back()["step"];
  EXPECT_TRUE(fs::exists(checkpoint(step) / "DONE"));
}

TEST_F(TrainCli, ADamagedCheckpointIsPassedOver) {
  ASSERT_EQ(train().code, 0);
  fs::resize_file(checkpoint(20) / "model.safetensors", 1000);
  Outcome o = train();
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, AllOf(HasSubstr("passing over the damaged checkpoint"), HasSubstr("step_00000020"),
                            HasSubstr("resuming after step 10")));
}

TEST_F(TrainCli, WithOnlyDamagedCheckpointsNothingIsOverwritten) {
  ASSERT_EQ(train().code, 0);
  for (int step : {10, 20}) fs::resize_file(checkpoint(step) / "model.safetensors", 1000);
  const std::string curve = text_of(run() / "metrics.jsonl");
  Outcome o = train();
  EXPECT_EQ(o.code, 1) << o.text;
  EXPECT_THAT(o.text, AllOf(HasSubstr("every checkpoint of the run is damaged"), HasSubstr("step_00000010: model"),
                            HasSubstr("step_00000020: model"), HasSubstr("--fresh")));
  EXPECT_EQ(text_of(run() / "metrics.jsonl"), curve);
  EXPECT_EQ(fs::file_size(checkpoint(20) / "model.safetensors"), 1000u);
  EXPECT_EQ(train("--fresh").code, 0);
}

TEST_F(TrainCli, AChangedConfigurationIsToldInALine) {
  ASSERT_EQ(train("--set ema.decay=0").code, 0);
  Outcome o = train();
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, HasSubstr("no averaged weights: it was saved with ema.decay = 0"));
  EXPECT_LT(std::count(o.text.begin(), o.text.end(), '\n'), 5) << o.text;
}

TEST_F(TrainCli, ACheckpointOfAnotherModelListsTheDifferences) {
  ASSERT_EQ(train().code, 0);
  Outcome o = train("--set model.layers=2 --set model.width=32");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("missing"), HasSubstr("h.1.attn"), HasSubstr("other shape"), HasSubstr("[256, 32]")));
  EXPECT_THAT(train("--set model.layers=1").text, HasSubstr("the run is complete"));  // and nothing was lost
}

TEST_F(TrainCli, NoSpaceKeepsTheEarlierCheckpoint) {
  ASSERT_EQ(train("--set train.steps=10").code, 0);
  std::string before = text_of(checkpoint(10) / "model.safetensors");
  // 20 KiB per file: room for the logs, not for the weights.
  Outcome o = shell("trap '' XFSZ; ulimit -f 40; exec " + program::path() + " train " + (dir_ / "tiny.toml").string());
  EXPECT_EQ(o.code, 74) << o.text;
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("cannot save a checkpoint at step 20"), HasSubstr("the one of step 10 is intact")));
  EXPECT_TRUE(text_of(checkpoint(10) / "model.safetensors") == before);
  EXPECT_EQ(train().code, 0);
}

TEST_F(TrainCli, NotANumberStopsWithTheStepAndTheOperation) {
  Outcome o = train("--set optimizer.lr=1e30 --set train.clip=0");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, AllOf(HasSubstr("of step"), HasSubstr("train.debug_nan=true")));
  o = train("--fresh --set optimizer.lr=1e30 --set train.clip=0 --set train.debug_nan=true");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, AllOf(HasSubstr("was made by"), HasSubstr("operation")));
}

#ifdef XY_WITH_ONNX
// What could not be checked is no success.
TEST_F(TrainCli, AnExportThatCannotBeVerifiedSaysSo) {
  train();
  const std::string command = program::path() + " export " + run().string() + " --out " + (dir_ / "out").string();
  EXPECT_EQ(shell("XY_PYTHON=/absent " + command).code, 0);
  Outcome o = shell("XY_PYTHON=/absent XY_ONNXRUNTIME=/missing.so " + command + " --verify");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, AllOf(HasSubstr("NOT verified: the onnx checker did not run: '/absent' cannot be started"),
                            HasSubstr("NOT verified: ONNX Runtime was not found"), HasSubstr("Tried: /missing.so")));
  EXPECT_TRUE(fs::exists(dir_ / "out/model.onnx"));
  o = shell("XY_PYTHON=/bin/false XY_ONNXRUNTIME=/missing.so " + command + " --verify");
  EXPECT_EQ(o.code, 1) << o.text;  // a checker that ran and failed
}
#endif

TEST_F(TrainCli, OnTheCpuThereIsNoGraph) {
  Outcome o = train("--set run.device=cpu --set train.cuda_graph=true --set train.steps=3");
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.text, HasSubstr("no CUDA graph: the run is on the CPU"));
}

// Evaluations and checkpoints come between the replays, the run is stopped and goes on: nothing shows in what it
// learns.
class TrainCliCuda : public TrainCli {};
TEST_F(TrainCliCuda, AGraphLeavesTheSameCheckpoint) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    std::string set = std::string("--set run.device=cuda --set train.eval_every=7 --set train.precision=") + precision;
    Outcome plain = train("--fresh " + set);
    ASSERT_EQ(plain.code, 0) << plain.text;
    auto expected = program::contents(checkpoint(20));
    set += " --set train.cuda_graph=true";
    Outcome graph = train("--fresh " + set);
    ASSERT_EQ(graph.code, 0) << graph.text;
    EXPECT_THAT(graph.text, HasSubstr("a CUDA graph replays the steps after the second"));
    EXPECT_TRUE(program::contents(checkpoint(20)) == expected) << precision;
    fs::remove_all(checkpoint(20));
    ASSERT_EQ(train("--resume " + set).code, 0);
    EXPECT_TRUE(program::contents(checkpoint(20)) == expected) << precision << ", resumed";
  }
}

TEST_F(TrainCli, BadConfigurationsAreExplained) {
  auto fails = [&](const std::string& more, const std::string& needle) {
    Outcome o = train(more);
    EXPECT_EQ(o.code, 1) << more;
    EXPECT_THAT(o.text, AllOf(HasSubstr("xylem: error: "), HasSubstr(needle)));
  };
  fails("--set optimizer.learning_rate=1", "unknown key 'optimizer.learning_rate'; did you mean 'optimizer.lr'?");
  fails("--set train.stepss=1", "did you mean 'train.steps'?");
  fails("--set run.dir=", "--set run.dir=: run.dir is empty");
  fails("--set train.steps=ten", "train.steps needs an integer but got");
  fails("--set model.name=gtp2", "gpt2");
  fails("--set model.widht=3", "width");
  fails("--set model.width=wide", "width");
  fails("--set data.train=/nowhere.tokens", "data.train: there is no file '/nowhere.tokens'");
  fails("--set run.device=cuda:99", "cuda:99");
  fails("--set data.seq=99", "data.seq is 99 but the model's context is 16");
  fails("--set model.vocab=100", "vocabulary of 256");
  fails("--resume", "no intact checkpoint");
  Outcome o = xylem("train /nowhere.toml");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, HasSubstr("there is no configuration file '/nowhere.toml'"));
  EXPECT_EQ(xylem("generate " + dir_.string()).code, 1);
}

// 60 images of 28 x 28 in IDX files, labels 0 to 9, as `xylem data fashion-mnist` reads them.
void write_idx(const fs::path& folder) {
  fs::create_directories(folder);
  auto header = [](std::ofstream& out, std::initializer_list<int> words) {
    for (int w : words)
      for (int shift : {24, 16, 8, 0}) out.put(char(w >> shift));
  };
  for (const char* split : {"train", "t10k"}) {
    std::ofstream images(folder / (std::string(split) + "-images-idx3-ubyte"), std::ios::binary);
    std::ofstream labels(folder / (std::string(split) + "-labels-idx1-ubyte"), std::ios::binary);
    header(images, {0x803, 60, 28, 28});
    header(labels, {0x801, 60});
    for (int i = 0; i < 60; ++i) {
      labels.put(char(i % 10));
      for (int p = 0; p < 28 * 28; ++p) images.put(char(28 * (i % 10)));
    }
  }
}

TEST_F(TrainCli, ImagesTrainAndTooFewClassesAreNamed) {
  if (!built_with_hdf5()) GTEST_SKIP() << "built without HDF5";
  write_idx(dir_ / "idx");
  ASSERT_EQ(xylem("data fashion-mnist --from " + (dir_ / "idx").string() + " --out " + (dir_ / "h5").string()).code, 0);
  std::ofstream(dir_ / "tiny.toml") << "[run]\n"
                                       "device = \"cpu\"\n"
                                       "[model]\n"
                                       "name = \"resnet_small\"\n"
                                       "width = 4\nstages = 2\n"
                                       "[data]\n"
                                       "kind = \"hdf5\"\ncrop_padding = 1\nflip = true\n"
                                       "[train]\n"
                                       "steps = 60\nglobal_batch = 20\nlabel_smoothing = 0.1\n";
  std::string sets = "--set run.dir=" + run().string() + " --set data.train=" + (dir_ / "h5/train.h5").string() +
                     " --set data.val=" + (dir_ / "h5/test.h5").string();
  Outcome o = train(sets + " --set optimizer.lr=0.02");
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_TRUE(metrics().back()["images_per_s"].is_number());
  EXPECT_GT(metrics().back()["val_accuracy"].get<double>(), 0.3) << o.text;

  o = train(sets + " --fresh --set model.classes=5");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, HasSubstr("has 10 classes but model.classes is 5"));
  o = train(sets + " --set data.train=" + (dir_ / "tiny.toml").string());
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, HasSubstr("tiny.toml"));
  EXPECT_THAT(train(sets + " --set data.kind=tokens").text, HasSubstr("does not suit the model 'resnet_small'"));
}

TEST_F(TrainCli, DamagedTokenFilesAreExplained) {
  fs::resize_file(dir_ / "train.tokens", 5000);
  Outcome o = train();
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, HasSubstr("train.tokens"));
  std::ofstream(dir_ / "train.tokens") << "not tokens";
  EXPECT_EQ(train().code, 1);
}

TEST_F(TrainCli, OutOfMemoryIsReported) {
  Outcome o = train("--set model.context=17592186044416 --set data.seq=16");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, AllOf(HasSubstr("memory"), HasSubstr("train.micro_batch")));
}

}  // namespace
}  // namespace xylem
