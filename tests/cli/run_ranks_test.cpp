// SPDX-License-Identifier: Apache-2.0
// Jobs of several ranks that are killed, stopped and resumed, on other numbers of ranks too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/cli/program.h"

#ifdef XY_MPIRUN
namespace xylem {
namespace {

namespace fs = std::filesystem;
using program::Started;
using testing::AllOf;
using testing::HasSubstr;

class RunRanks : public testing::Test {
 protected:
  void SetUp() override {
    setenv("OMP_NUM_THREADS", "1", 0);
    program::write_tiny_job(dir_,
                            "[train]\nsteps = 40\nglobal_batch = 8\nlog_every = 1\neval_every = 25\n"
                            "[checkpoint]\nevery = 10\n");
  }
  std::string config() const { return dir_ / "tiny.toml"; }
  std::string set_run(const std::string& run) const { return "run.dir=" + (dir_ / run).string(); }
  Outcome train(int ranks, const std::string& run, const std::string& more = "") const {
    return shell(XY_MPIRUN " " + std::to_string(ranks) + " " + program::path() + " train " + config() + " --set " +
                 set_run(run) + " " + more);
  }
  Started start(const std::string& run, const std::string& log, const std::vector<std::string>& more,
                const std::vector<std::pair<std::string, std::string>>& environment = {}) const {
    std::vector<std::string> words{"run", config(),    "-np",  "2",     "--restarts",
                                   "3",   "--backoff", "0.05", "--set", set_run(run)};
    words.insert(words.end(), more.begin(), more.end());
    return Started(words, dir_ / log, environment);
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::istringstream lines(read_file(dir_ / run / "metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) {
      auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_discarded()) all.push_back(json);  // the last one may be half written
    }
    return all;
  }
  // The last number behind `words` in a text, or -1.
  static int64_t last_number(const std::string& text, const std::string& words) {
    size_t at = text.rfind(words);
    return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + words.size());
  }
  Scratch scratch_;
  const fs::path dir_ = scratch_.path();
};

// Kills a random rank at a random moment, every other time while a checkpoint is being written. All 20 runs:
// XYLEM_KILL_RUNS=20, or ctest -C kill -L kill.
TEST_F(RunRanks, KilledAtAnyMomentEndsWithTheSameBytes) {
  const int64_t every = 10, steps = 40;
  const char* wanted = std::getenv("XYLEM_KILL_RUNS");
  int runs = wanted ? std::atoi(wanted) : 6, lost_most = 0, while_writing = 0;
  std::mt19937 random(std::random_device{}());
  for (int zero : {0, 1}) {
    std::string set_zero = "distributed.zero=" + std::to_string(zero), undisturbed = "alone" + std::to_string(zero);
    Outcome alone = train(2, undisturbed, "--set " + set_zero);
    ASSERT_EQ(alone.code, 0) << alone.text;
    auto expected = program::contents(program::checkpoint(dir_ / undisturbed, steps));
    ASSERT_TRUE(expected.contains("manifest.json"));

    for (int i = zero; i < runs; i += 2) {
      std::string name = "killed" + std::to_string(i);
      fs::path folder = dir_ / name;
      bool writing = i / 2 % 2 == 1;  // which then takes about as long as the steps between two checkpoints
      Started job =
          start(name, name + ".log", {"--set", set_zero}, {{"XYLEM_TEST_WRITE_DELAY_MS", writing ? "1" : "0"}});
      int64_t after = 1 + int64_t(random() % (steps - 2));
      auto being_written = [&] {
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(folder / "checkpoints", none))
          if (entry.path().filename().string().starts_with(".saving")) return true;
        return false;
      };
      ASSERT_TRUE(job.until([&] {
        return last_number(job.text(), "step ") >= 0 && !metrics(name).empty() &&
               metrics(name).back()["step"] >= after - (writing ? every : 0) && (!writing || being_written());
      })) << job.text();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % (writing ? 20 : 4)));
      auto ranks = program::trainers(config());
      int victim = int(random() % 2);
      if (!ranks.contains(victim)) continue;  // it was done already
      bool saving = being_written();
      while_writing += saving;
      kill(ranks[victim], SIGKILL);
      int64_t reached = metrics(name).back()["step"];
      ASSERT_EQ(job.wait(), 0) << job.text();
      EXPECT_TRUE(program::contents(program::checkpoint(folder, steps)) == expected) << job.text();
      if (job.text().find("restart 1 of 3") == std::string::npos) continue;  // killed in its last breath
      int64_t resumed = std::max<int64_t>(0, last_number(job.text(), "resuming after step ")), lost = reached - resumed;
      lost_most = std::max(lost_most, int(lost));
      // A checkpoint that was being written is lost, and what was trained beside it.
      EXPECT_LE(lost, saving ? 2 * every : every) << job.text();
    }
  }
  std::printf("%d runs, %d of them killed while a checkpoint was being written; at most %d steps repeated\n", runs,
              while_writing, lost_most);
}

TEST_F(RunRanks, ResumesBitExactlyAndOnOtherRanksAndStages) {
  std::string plain = "--set model.dropout=0";  // which draws other numbers on other ranks
  ASSERT_EQ(train(2, "two", plain).code, 0);
  auto expected = program::contents(program::checkpoint(dir_ / "two", 40));
  auto curve = metrics("two");
  struct Case {
    int ranks, zero, micro;
  };
  auto options = [&](Case c) {
    return plain + " --set distributed.zero=" + std::to_string(c.zero) +
           " --set train.micro_batch=" + std::to_string(c.micro);
  };
  for (Case from : {Case{2, 0, 0}, Case{4, 3, 1}}) {
    fs::path before = dir_ / ("from" + std::to_string(from.ranks));
    Outcome first = train(from.ranks, before.filename(), options(from));
    ASSERT_EQ(first.code, 0) << first.text;
    for (int64_t step : {30, 40}) fs::remove_all(program::checkpoint(before, step));
    for (Case to : {Case{2, 0, 0}, Case{1, 0, 0}, from.zero == 0 ? Case{4, 2, 2} : Case{2, 3, 0}}) {
      fs::remove_all(dir_ / "resumed");
      fs::copy(before, dir_ / "resumed", fs::copy_options::recursive);
      Outcome second = train(to.ranks, "resumed", options(to) + " --resume");
      ASSERT_EQ(second.code, 0) << second.text;
      EXPECT_THAT(second.text, HasSubstr("resuming after step 20"));
      auto again = metrics("resumed");
      ASSERT_EQ(again.size(), curve.size());
      for (size_t i = 0; i < curve.size(); ++i)
        for (const char* key : {"step", "loss", "grad_norm", "lr"}) {
          double x = again[i][key], y = curve[i][key];
          EXPECT_NEAR(x, y, 2e-4 * (1 + std::abs(y)))
              << key << " of step " << i + 1 << ", " << from.ranks << " ranks then " << to.ranks;
        }
      if (from.ranks == 2 && to.ranks == 2 && to.zero == 0) {
        EXPECT_TRUE(program::contents(program::checkpoint(dir_ / "resumed", 40)) == expected);
      }
    }
  }
}

TEST_F(RunRanks, SigtermReachesAllRanksAndTheJobGoesOn) {
  ASSERT_EQ(train(2, "alone", "--set train.steps=500").code, 0);
  Started job = start("run", "log", {"--set", "train.steps=500"});
  ASSERT_TRUE(job.until([&] { return fs::exists(program::checkpoint(dir_ / "run", 10)); })) << job.text();
  kill(job.pid(), SIGTERM);
  ASSERT_EQ(job.wait(), 75) << job.text();
  EXPECT_THAT(job.text(), AllOf(HasSubstr("stopped after step"), HasSubstr("to go on: xylem run -np 2 --restarts 3")));
  Started rest = start("run", "log2", {"--set", "train.steps=500"});
  ASSERT_EQ(rest.wait(), 0) << rest.text();
  EXPECT_TRUE(program::contents(program::checkpoint(dir_ / "run", 500)) ==
              program::contents(program::checkpoint(dir_ / "alone", 500)));
  Outcome joined = program::xylem("checkpoint consolidate " + (dir_ / "run").string() + " --out " +
                                  (dir_ / "model.safetensors").string());
  EXPECT_EQ(joined.code, 0) << joined.text;
  Outcome text = program::xylem("generate " + (dir_ / "run").string() + " --tokens 5 --device cpu");
  EXPECT_EQ(text.code, 0) << text.text;
}

}  // namespace
}  // namespace xylem
#endif
