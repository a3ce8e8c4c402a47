// SPDX-License-Identifier: Apache-2.0
// `xylem train` under mpirun, as a user runs it, against one process with the same configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/device/device.h"
#include "models/checkpoint/reader.h"
#include "models/nn/ranges.h"
#include "tests/cli/program.h"

#ifdef XY_MPIRUN
namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TrainRanks : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "And it came to pass on day " + std::to_string(i) + ".\n";
    write_byte_tokens(dir_ / "train.tokens", text);
    write_byte_tokens(dir_ / "val.tokens", text.substr(0, 1300));
    // 179 windows of 16 tokens: an epoch ends within the run. 81 to validate on: not divided evenly by any rank count.
    std::ofstream(dir_ / "tiny.toml") << R"([run]
device = "cpu"
[model]
name = "gpt2"
vocab = 256
context = 16
layers = 1
heads = 2
width = 16
[data]
kind = "tokens"
train = ")" << (dir_ / "train.tokens").string()
                                      << R"("
val = ")" << (dir_ / "val.tokens").string()
                                      << R"("
[train]
steps = 30
global_batch = 8
log_every = 5
eval_every = 15
[optimizer]
lr = 1e-2
[checkpoint]
every = 15
)";
  }
  // Standard output and error, ending with "exit N".
  std::string train(int ranks, const std::string& run, const std::string& more = "") const {
    std::string command = (ranks > 1 ? XY_MPIRUN " " + std::to_string(ranks) + " " : std::string()) + program::path() +
                          " train " + (dir_ / "tiny.toml").string() + " --set run.dir=" + (dir_ / run).string() + " " +
                          more;
    Outcome o = shell(command);
    return o.text + "exit " + std::to_string(o.code);
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::ifstream in(dir_ / run / "metrics.jsonl");
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  void expect_same_curve(const std::string& run, const std::string& reference, double tolerance,
                         std::optional<double> of_norms = {}) const {
    auto a = metrics(run), b = metrics(reference);
    ASSERT_EQ(a.size(), b.size());
    ASSERT_GT(a.size(), 5u);
    for (size_t i = 0; i < a.size(); ++i)
      for (const char* key : {"step", "loss", "grad_norm", "lr", "val_loss"}) {
        ASSERT_EQ(a[i].contains(key), b[i].contains(key)) << key;
        if (!a[i].contains(key)) continue;
        double x = a[i][key], y = b[i][key];
        double share = key == std::string("grad_norm") ? of_norms.value_or(tolerance) : tolerance;
        EXPECT_NEAR(x, y, share * (1 + std::abs(y))) << key << " of line " << i;
      }
  }
  Scratch scratch_;
  const fs::path dir_ = scratch_.path();
};

TEST_F(TrainRanks, RanksFollowOneProcess) {
  std::string alone = train(1, "alone");
  EXPECT_THAT(alone, HasSubstr("exit 0"));
  std::string two = train(2, "two");
  EXPECT_THAT(two, HasSubstr("exit 0"));
  EXPECT_THAT(two, HasSubstr("2 ranks, ZeRO 0"));
  EXPECT_THAT(two, Not(HasSubstr("\033")));  // mpirun gives a rank a terminal, and passes on what it writes there
  expect_same_curve("two", "alone", 1e-5);
  EXPECT_LT(metrics("alone").back()["loss"], metrics("alone").front()["loss"]);
  // Each rank evaluates on its share, and the ranges of all are the largest of each.
  auto ranges = [&](const std::string& run) {
    return ranges_in(CheckpointReader(program::checkpoint(dir_ / run, 30)).info().extra);
  };
  LayerRanges ours = ranges("two"), theirs = ranges("alone");
  EXPECT_GT(theirs.size(), 10u);
  EXPECT_EQ(ours.size(), theirs.size());
  for (auto& [key, seen] : theirs) EXPECT_NEAR(ours[key], seen, 1e-3 * seen) << key;
  // Micro-batches are per rank; ZeRO changes nothing in what is computed.
  EXPECT_THAT(train(4, "zero", "--set train.micro_batch=1 --set distributed.zero=3 --set distributed.bucket_mb=0.001"),
              HasSubstr("exit 0"));
  expect_same_curve("zero", "alone", 1e-5);
#ifdef XY_WITH_ONNX
  Outcome exported = program::xylem("export " + program::checkpoint(dir_ / "zero", 30).string() +
                                    " --external-data --out " + (dir_ / "bundle").string());
  EXPECT_EQ(exported.code, 0) << exported.text;
  EXPECT_TRUE(fs::exists(dir_ / "bundle/model.weights.bin"));
  EXPECT_THAT(read_file(dir_ / "bundle/model.onnx"),
              AllOf(HasSubstr("xylem.amax.logits"), HasSubstr("xylem.val_loss"), HasSubstr("xylem.val_step")));
#endif
  // Other numbers of ranks, and other stages, go on where these have stopped.
  for (int ranks : {1, 2}) {
    fs::remove_all(dir_ / "zero/checkpoints/step_00000030");
    std::string resumed = train(ranks, "zero", "--resume --set distributed.zero=" + std::to_string(ranks - 1));
    EXPECT_THAT(resumed, AllOf(HasSubstr("resuming after step 15"), HasSubstr("exit 0")));
    expect_same_curve("zero", "alone", 1e-5);
  }
}

TEST_F(TrainRanks, ReductionsRunDuringBackward) {
  EXPECT_THAT(train(2, "overlap",
                    "--set model.layers=4 --set model.width=64 --set distributed.bucket_mb=0.1 --set train.steps=12 "
                    "--trace " +
                        (dir_ / "trace.json").string()),
              HasSubstr("exit 0"));
  auto trace = nlohmann::json::parse(read_file(dir_ / "trace.json"));
  for (int rank : {0, 1}) {
    std::vector<std::pair<double, double>> backward, reductions;
    for (const auto& e : trace["traceEvents"]) {
      if (e["ph"] != "X" || e["pid"] != rank) continue;
      double begin = e["ts"], length = e["dur"];
      std::string name = e["name"];
      if (name == "backward") backward.emplace_back(begin, begin + length);
      if (name.starts_with("all_reduce bucket ")) reductions.emplace_back(begin, begin + length);
    }
    EXPECT_EQ(backward.size(), 12u);
    EXPECT_GE(reductions.size(), 12u * 4);
    // The last buckets of a step cannot, and on a busy machine more may be late.
    int64_t steps = std::count_if(backward.begin(), backward.end(), [&](auto step) {
      return std::any_of(reductions.begin(), reductions.end(),
                         [&](auto r) { return step.first < r.first && r.first < step.second; });
    });
    EXPECT_GE(steps, 4) << "steps of 12 in which a reduction started while the backward pass of rank " << rank
                        << " was running";
  }
}

// Ranks calibrate on their shares and agree; a number that is rounded the other way now and then sets the tolerance.
TEST_F(TrainRanks, QuantizedRanksFollowOneProcess) {
  struct Case {
    std::string observer, more;
    double of_losses, of_norms;
  };
  // Scales from moving averages are the ranks' largest, not those of one process: rounding to int8 then moves the norms
  // of the gradients by some per cent (0.2 to 6 with other seeds and schedules), the losses hardly.
  const Case cases[] = {{"percentile", "--set quantize.start=10 --set quantize.batch_norms=freeze", 1e-3, 1e-3},
                        {"minmax", "--set distributed.zero=1 --set quantize.learned=true", 1e-3, 1e-3},
                        {"moving_average", "--set distributed.zero=2 --set quantize.freeze=25", 2e-3, 1e-1}};
  auto final_state = [&] { return program::contents(program::checkpoint(dir_ / "two", 30)); };
  for (const Case& c : cases) {
    std::string set =
        "--fresh --set quantize.format=int8 --set quantize.small_layers=true --set quantize.observer=" + c.observer +
        " " + c.more;
    EXPECT_THAT(train(1, "alone", set), AllOf(HasSubstr("calibrated for int8"), HasSubstr("exit 0")));
    EXPECT_THAT(train(2, "two", set), AllOf(HasSubstr("calibrated for int8"), HasSubstr("exit 0")));
    expect_same_curve("two", "alone", c.of_losses, c.of_norms);
    EXPECT_LT(metrics("two").back()["loss"], metrics("two").front()["loss"]);
    // Resumed, it ends with the same bytes.
    auto expected = final_state();
    fs::remove_all(program::checkpoint(dir_ / "two", 30));
    EXPECT_THAT(train(2, "two", set.substr(8) + " --resume"),
                AllOf(HasSubstr("resuming after step 15"), HasSubstr("exit 0")));
    EXPECT_TRUE(final_state() == expected) << c.observer;
    // Neither evaluations nor checkpoints change what is learnt.
    if (c.observer == "moving_average") {
      train(2, "two", set + " --set train.eval_every=4 --set checkpoint.every=7");
      for (auto& [file, bytes] : final_state())
        if (file.ends_with(".safetensors")) {
          EXPECT_TRUE(bytes == expected[file]) << file;
        }
    }
  }
}

class TrainRanksCuda : public TrainRanks {};
TEST_F(TrainRanksCuda, AGraphLeavesTheSameCheckpoint) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  setenv("XY_SHARE_GPU", "1", 1);
  for (const char* zero : {"0 --set distributed.verify_every=10", "3"}) {
    std::string set =
        std::string("--set run.device=cuda --set distributed.bucket_mb=0.01 --set distributed.zero=") + zero;
    EXPECT_THAT(train(2, "plain", "--fresh " + set), HasSubstr("exit 0"));
    auto expected = program::contents(program::checkpoint(dir_ / "plain", 30));
    set += " --set train.cuda_graph=true";
    EXPECT_THAT(train(2, "graph", "--fresh " + set), AllOf(HasSubstr("a CUDA graph replays"), HasSubstr("exit 0")));
    EXPECT_TRUE(program::contents(program::checkpoint(dir_ / "graph", 30)) == expected) << "ZeRO " << zero;
    fs::remove_all(program::checkpoint(dir_ / "graph", 30));
    EXPECT_THAT(train(2, "graph", "--resume " + set), HasSubstr("exit 0"));
    EXPECT_TRUE(program::contents(program::checkpoint(dir_ / "graph", 30)) == expected) << "resumed, ZeRO " << zero;
  }
  unsetenv("XY_SHARE_GPU");
}

TEST_F(TrainRanks, ABatchThatDoesNotDivideIsAnError) {
  EXPECT_THAT(train(2, "odd", "--set train.global_batch=9"),
              HasSubstr("global_batch (9) is not a multiple of the 2 ranks that share it"));
}

}  // namespace
}  // namespace xylem
#endif
