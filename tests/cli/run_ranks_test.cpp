// SPDX-License-Identifier: Apache-2.0
// Jobs of several ranks that are killed, stopped and resumed, on other numbers of ranks too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
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
using testing::Not;

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
  Started start(const std::string& run, const std::string& log, const std::vector<std::string>& more) const {
    std::vector<std::string> words{"run", config(),    "-np",  "2",     "--restarts",
                                   "3",   "--backoff", "0.05", "--set", set_run(run)};
    words.insert(words.end(), more.begin(), more.end());
    return Started(words, dir_ / log);
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::istringstream lines(text_of(dir_ / run / "metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) {
      auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_discarded()) all.push_back(json);  // the last one may be half written
    }
    return all;
  }
  int64_t reached(const std::string& run) const {
    auto all = metrics(run);
    return all.empty() ? 0 : all.back()["step"].get<int64_t>();
  }
  // By a job that was killed; until it starts again.
  int64_t reached_at_end(Started& job, const std::string& run) const {
    int64_t most = 0;
    job.until([&] {
      most = std::max(most, reached(run));
      return job.text().find("xylem run: ") != std::string::npos;
    });
    return std::max(most, reached(run));
  }
  bool being_written(const std::string& run) const {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(dir_ / run / "checkpoints", none))
      if (entry.path().filename().string().starts_with(".saving")) return true;
    return false;
  }
  // Of the sources.
  static std::string commit() {
    std::string text = shell("git -C " XY_FIXTURES " describe --always --dirty --abbrev=40 --exclude '*'").text;
    return text.substr(0, text.find('\n'));
  }
  // The last number behind `words` in a text, or -1.
  static int64_t last_number(const std::string& text, const std::string& words) {
    size_t at = text.rfind(words);
    return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + words.size());
  }
  Scratch scratch_;
  const fs::path dir_ = scratch_.path();
};

// Kills a random rank at a random moment, every other time while a checkpoint is being written. What was trained since
// the newest checkpoint that training has passed, and no more, is done again. All 20 runs: XYLEM_KILL_RUNS=20, or
// ctest -C kill -L kill; XYLEM_KILL_JSON=FILE keeps the figures.
TEST_F(RunRanks, KilledAtAnyMomentLosesOneIntervalAtMostAndEndsWithTheSameBytes) {
  const int64_t every = 10, steps = 40;
  const char* wanted = std::getenv("XYLEM_KILL_RUNS");
  int runs = wanted ? std::atoi(wanted) : 6, while_writing = 0, finished = 0, equal = 0;
  std::vector<int64_t> lost;
  std::mt19937 random(std::random_device{}());
  for (int zero : {0, 1}) {
    std::string set_zero = "distributed.zero=" + std::to_string(zero), undisturbed = "alone" + std::to_string(zero);
    Outcome alone = train(2, undisturbed, "--set " + set_zero);
    ASSERT_EQ(alone.code, 0) << alone.text;
    auto expected = program::contents(program::checkpoint(dir_ / undisturbed, steps));
    ASSERT_TRUE(expected.contains("manifest.json"));

    for (int i = zero; i < runs; i += 2) {
      std::string name = "killed" + std::to_string(i);
      bool writing = i / 2 % 2 == 1;  // which then takes about as long as the steps between two checkpoints
      Started job =
          start(name, name + ".log",
                {"--set", set_zero, "--set", std::string("checkpoint.mb_per_second=") + (writing ? "1" : "0")});
      int64_t after = 1 + int64_t(random() % (steps - 6));
      ASSERT_TRUE(job.until([&] {
        return last_number(job.text(), "step ") >= 0 &&
               reached(name) >= std::max<int64_t>(1, after - (writing ? every : 0)) &&
               (!writing || being_written(name));
      })) << job.text();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % (writing ? 20 : 4)));
      auto ranks = program::trainers(config());
      int victim = int(random() % 2);
      if (!ranks.contains(victim)) continue;  // it was done already
      bool saving = being_written(name);
      kill(ranks[victim], SIGKILL);
      int64_t step = reached_at_end(job, name);
      ASSERT_EQ(job.wait(), 0) << job.text();
      bool same = program::contents(program::checkpoint(dir_ / name, steps)) == expected;
      EXPECT_TRUE(same) << job.text();
      equal += same;
      if (job.text().find("restart 1 of 3") == std::string::npos) continue;  // killed in its last breath
      int64_t resumed = std::max<int64_t>(0, last_number(job.text(), "resuming after step "));
      EXPECT_EQ(resumed % every, 0);
      EXPECT_LE(step - resumed, every) << "killed " << (saving ? "while writing\n" : "\n") << job.text();
      lost.push_back(std::max<int64_t>(0, step - resumed));
      while_writing += saving;
      finished += job.text().find("finished the checkpoint of step") != std::string::npos;
    }
  }
  ASSERT_FALSE(lost.empty());
  std::sort(lost.begin(), lost.end());
  nlohmann::ordered_json figures{{"ranks", 2},
                                 {"runs", runs},
                                 {"killed_and_restarted", lost.size()},
                                 {"killed_while_a_checkpoint_was_written", while_writing},
                                 {"checkpoints_finished_by_the_restart", finished},
                                 {"checkpoint_every", every},
                                 {"steps_lost", lost},
                                 {"steps_lost_max", lost.back()},
                                 {"steps_lost_median", double(lost[(lost.size() - 1) / 2] + lost[lost.size() / 2]) / 2},
                                 {"final_checkpoints_equal", equal},
                                 {"commit", commit()}};
  std::printf("%s\n", figures.dump().c_str());
  if (const char* file = std::getenv("XYLEM_KILL_JSON")) std::ofstream(file) << figures.dump() << "\n";
}

// The bounds at their limits: all ranks killed, as late as can be in the writing of a checkpoint.
TEST_F(RunRanks, KilledWhileItWritesGoesOnFromWhatItWasWriting) {
  for (std::string memory : {"shared", "private"}) {
    Started job = start(
        memory, memory + ".log",
        {"--set", "checkpoint.memory=" + memory, "--set", "train.steps=30", "--set", "checkpoint.mb_per_second=0.05"});
    // Rank 0 waits with the save of step 20, at most, for that of step 10.
    ASSERT_TRUE(job.until([&] { return reached(memory) >= 15; })) << job.text();
    EXPECT_TRUE(being_written(memory));
    for (auto [rank, pid] : program::trainers(config())) kill(pid, SIGKILL);
    int64_t step = reached_at_end(job, memory);
    ASSERT_EQ(job.wait(), 0) << job.text();
    if (memory == "shared") {
      EXPECT_THAT(job.text(), AllOf(HasSubstr("finished the checkpoint of step 10, which an earlier job was writing"),
                                    HasSubstr("resuming after step 10 of 30")));
    } else {
      EXPECT_THAT(job.text(), AllOf(HasSubstr("the checkpoint of step 10 was being written when an earlier job ended"),
                                    Not(HasSubstr("resuming after step 10"))));
      EXPECT_LE(step, 2 * 10);  // an interval, and at most another one beside the writing
    }
  }
}

// A file system of 300 kB of its own, where mounting one is allowed.
class SmallDisk {
 public:
  explicit SmallDisk(const fs::path& at) : at_(at) {
    fs::create_directories(at);
    mounted_ = ::mount("tmpfs", at.c_str(), "tmpfs", 0, "size=300k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  fs::path at_;
  bool mounted_;
};

TEST_F(RunRanks, AFullDiskIsToldAndNotTriedAgain) {
  SmallDisk disk(dir_ / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "may not mount a file system";
  Started job = start("disk/run", "log", {"--set", "checkpoint.memory=private", "--set", "checkpoint.keep=0"});
  EXPECT_EQ(job.wait(), 74) << job.text();
  EXPECT_THAT(job.text(), AllOf(testing::ContainsRegex("xylem: rank [01]: error: .*No space left on device"),
                                HasSubstr("xylem run: the job could not write its files"),
                                HasSubstr("a restart would meet the same"), Not(HasSubstr("restart 1 of 3")),
                                Not(HasSubstr("does not answer"))));
}

TEST_F(RunRanks, AFolderThatCannotBeMadeIsToldByTheRankThatTried) {
  write_file(dir_ / "file", "");
  Outcome o = train(2, "file/run");
  EXPECT_NE(o.code, 0);
  EXPECT_THAT(o.text,
              testing::ContainsRegex("xylem: rank [01]: error: cannot make the run's folder .*Not a directory"));
}

TEST_F(RunRanks, TwoJobsDoNotShareARun) {
  Started first = start("run", "log", {"--set", "train.steps=100000"});
  ASSERT_TRUE(first.until([&] { return reached("run") >= 1; })) << first.text();
  Outcome second = train(2, "run");
  EXPECT_EQ(second.code, 1) << second.text;
  EXPECT_THAT(second.text, AllOf(HasSubstr("another job has the run"), HasSubstr("/run/lock")));
  EXPECT_EQ(train(2, "run", "--fresh").code, 1) << "a run was moved from under its job";
  EXPECT_TRUE(first.running()) << first.text();
  kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.wait(), 75) << first.text();
  EXPECT_FALSE(fs::exists(dir_ / "run/lock"));
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
  ASSERT_EQ(train(2, "alone", "--set train.steps=2000").code, 0);
  Started job = start("run", "log", {"--set", "train.steps=2000"});
  ASSERT_TRUE(job.until([&] { return fs::exists(program::checkpoint(dir_ / "run", 10)); })) << job.text();
  kill(job.pid(), SIGTERM);
  ASSERT_EQ(job.wait(), 75) << job.text();
  EXPECT_THAT(job.text(), AllOf(HasSubstr("stopped after step"), HasSubstr("to go on: xylem run -np 2 --restarts 3")));
  Started rest = start("run", "log2", {"--set", "train.steps=2000"});
  ASSERT_EQ(rest.wait(), 0) << rest.text();
  EXPECT_TRUE(program::contents(program::checkpoint(dir_ / "run", 2000)) ==
              program::contents(program::checkpoint(dir_ / "alone", 2000)));
  Outcome joined = program::xylem("checkpoint consolidate " + (dir_ / "run").string() + " --out " +
                                  (dir_ / "model.safetensors").string());
  EXPECT_EQ(joined.code, 0) << joined.text;
  Outcome text = program::xylem("generate " + (dir_ / "run").string() + " --tokens 5 --device cpu");
  EXPECT_EQ(text.code, 0) << text.text;
}

}  // namespace
}  // namespace xylem
#endif
