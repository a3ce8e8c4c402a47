// SPDX-License-Identifier: Apache-2.0
// Real jobs of two ranks that go wrong: the verdict, the exit code and the files they leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/device/device.h"
#include "tests/support.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class Hang : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(program())) GTEST_SKIP() << "a build without MPI";
  }
  static fs::path program() { return fs::canonical("/proc/self/exe").parent_path() / "hang_program"; }

  void run(const std::string& scenario, int ranks = 2) {
    std::string command = "timeout -k 1 60 " XY_SOURCE_DIR "/tests/dist/mpirun.sh " + std::to_string(ranks) + " " +
                          program().string() + " " + scenario + " " + folder_.string() + unwritable_ + " </dev/null";
    Outcome o = shell(command);
    output_ = o.text;
    code_ = o.code;
    verdict_ = text_of(folder_ / "hang_verdict.txt");
  }
  void expect_files(int ranks) {
    EXPECT_NE(code_, 0);
    EXPECT_NE(code_, 124) << "it hung\n" << output_;
    for (int r = 0; r < ranks; ++r) {
      auto dump = nlohmann::json::parse(text_of(folder_ / ("hang_rank" + std::to_string(r) + ".json")), nullptr, false);
      ASSERT_TRUE(dump.is_object()) << "rank " << r << "\n" << output_;
      EXPECT_EQ(dump["rank"], r);
    }
  }
  Scratch scratch_;
  const fs::path folder_ = scratch_.path();
  std::string output_, verdict_, unwritable_;
  int code_ = 0;
};

TEST_F(Hang, AJobThatIsWellLeavesNothing) {
  run("well");
  EXPECT_EQ(code_, 0) << output_;
  EXPECT_THAT(output_, HasSubstr("all is well"));
  EXPECT_THAT(output_, ContainsRegex("rank +host +device"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Hang, ARankThatSleepsInItsLoader) {
  run("late");
  expect_files(2);
  EXPECT_EQ(code_, 87);
  EXPECT_THAT(verdict_,
              ContainsRegex("rank 1 never entered all_reduce #[0-9]+ \\(bucket 3, f32 x 1024\\); it is in the "
                            "data loader"));
  EXPECT_THAT(output_, HasSubstr("it is in the data loader"));
}

TEST_F(Hang, ARankThatThrew) {
  run("throw", 3);
  expect_files(3);
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(verdict_, AllOf(HasSubstr("rank 2 threw: the disk is full"), Not(HasSubstr("never"))));
}

TEST_F(Hang, AnErrorOfAllRanksIsToldOnceAtOnceAndOnceInTheVerdict) {
  run("throw_all");
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(verdict_, HasSubstr("ranks 0 and 1 threw: no such model"));
  EXPECT_THAT(output_, ContainsRegex("xylem: rank [01]: error: no such model.*\n.*xylem: the job cannot go on"));
  size_t told = 0;
  for (size_t at = 0; (at = output_.find("no such model", at)) != std::string::npos; ++at) ++told;
  EXPECT_EQ(told, 2u) << output_;
}

TEST_F(Hang, ARankThatHasFewerBatches) {
  run("fewer", 3);
  expect_files(3);
  EXPECT_THAT(verdict_,
              AllOf(ContainsRegex("^rank 2 has finished its work, while ranks 0 and 1 wait in all_reduce "
                                  "#[0-9]+ \\(bucket 3, f32 x 1024\\): all ranks must take the same number of "
                                  "steps"),
                    Not(HasSubstr("gather"))));
}

TEST_F(Hang, WantOfRoomHasACodeOfItsOwn) {
  run("no_room");
  EXPECT_EQ(code_, 74) << output_;
  EXPECT_THAT(verdict_, HasSubstr("rank 1 threw: cannot write 'metrics.jsonl': No space left on device"));
}

// Whatever user runs the tests: nothing can be written into a folder whose parent is a file.
TEST_F(Hang, WithoutAFolderToWriteToTheErrorAndTheVerdictArePrinted) {
  write_file(folder_ / "file", "");
  unwritable_ = "/file/run";
  run("no_room", 3);
  EXPECT_EQ(code_, 74) << output_;
  EXPECT_THAT(output_, AllOf(HasSubstr("xylem: rank 2: error: cannot write 'metrics.jsonl'"),
                             HasSubstr("rank 2 threw: cannot write 'metrics.jsonl'"),
                             HasSubstr("nothing is known of ranks 0 and 1: '" + (folder_ / "file/run").string() +
                                       "' cannot be written: Not a directory"),
                             Not(HasSubstr("does not answer"))));
  EXPECT_LT(output_.find("rank 2: error"), output_.find("the job cannot go on"));

  run("late");
  EXPECT_EQ(code_, 87) << output_;
  EXPECT_THAT(output_, AllOf(HasSubstr("a collective did not finish within 2 s"), HasSubstr("waits in all_reduce"),
                             HasSubstr("nothing of this was kept")));
}

TEST_F(Hang, ARankInAnotherCollective) {
  run("other");
  expect_files(2);
  EXPECT_THAT(verdict_, AllOf(ContainsRegex("rank 0 is in all_reduce #[0-9]+ \\(bucket 3\\), rank 1 in broadcast #"),
                              Not(HasSubstr("never"))));
}

TEST_F(Hang, CollectivesOfDifferentSizes) {
  run("size");
  expect_files(2);
  EXPECT_THAT(verdict_, ContainsRegex("ranks disagree on the size of all_reduce #[0-9]+: f32 x 1024 \\(bucket 3\\) "
                                      "\\(rank 0\\) and f32 x 1000 \\(bucket 3\\) \\(rank 1\\)"));
}

TEST_F(Hang, ARankThatIsKilled) {
  run("kill");
  expect_files(2);
  EXPECT_THAT(verdict_,
              AllOf(ContainsRegex("rank 1 is gone: process [0-9]+ on "), HasSubstr("rank 0 waits in all_reduce")));
}

TEST_F(Hang, ARankThatCrashes) {
  run("crash");
  expect_files(2);
  EXPECT_THAT(verdict_, ContainsRegex("rank 1 is gone: process [0-9]+ on .* was ended by SIGSEGV"));
}

TEST_F(Hang, ARankThatIsStopped) {
  run("stop");
  expect_files(2);
  EXPECT_THAT(verdict_, ContainsRegex("rank 1 is stopped: process [0-9]+ on .* SIGSTOP"));
}

TEST_F(Hang, ReplicasThatDifferInOneBit) {
  run("flip", 3);
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(verdict_, ContainsRegex("the parameters of the replicas differ: rank 2 on .*; 1 of 2 tensors differ, the "
                                      "first is weight"));
  run("flip");
  EXPECT_THAT(verdict_, HasSubstr("no majority"));
}

TEST_F(Hang, ConfigurationsThatDiffer) {
  run("config");
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(output_, AllOf(HasSubstr("the ranks have different configurations"),
                             HasSubstr("the first difference is 0 on rank 0, 1 on rank 1")));
  EXPECT_EQ(output_.find("different configurations"), output_.rfind("different configurations")) << output_;
  EXPECT_THAT(output_, Not(HasSubstr("all is well")));
}

TEST_F(Hang, TheTraceHoldsAllRanks) {
  run("trace");
  ASSERT_EQ(code_, 0) << output_;
  auto trace = nlohmann::json::parse(text_of(folder_ / "trace.json"));
  std::map<int, int> reductions, steps;
  for (const auto& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    EXPECT_GE(e["ts"].get<double>(), 0);
    EXPECT_LT(e["ts"].get<double>(), 60e6);
    if (e["name"] == "all_reduce bucket 3") {
      ++reductions[e["pid"]];
      EXPECT_EQ(e["args"]["bytes"], 4096);
    }
    if (e["name"] == "step") ++steps[e["pid"]];
  }
  EXPECT_EQ(reductions, (std::map<int, int>{{0, 4}, {1, 4}}));
  EXPECT_EQ(steps, (std::map<int, int>{{0, 1}, {1, 1}}));
  EXPECT_FALSE(fs::exists(folder_ / "trace.json.rank0"));
}

class HangCuda : public Hang {};

// The replay has come past its first collective and waits in the second.
TEST_F(HangCuda, ARankThatDoesNotReplayItsGraph) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  setenv("XY_SHARE_GPU", "1", 1);
  run("graph");
  unsetenv("XY_SHARE_GPU");
  expect_files(2);
  EXPECT_EQ(code_, 87);
  EXPECT_THAT(verdict_, ContainsRegex("rank 1 never entered all_reduce #[0-9]+ \\(bucket 3, f32 x 1024, in a CUDA "
                                      "graph\\); it is in the data loader"));
  auto last = nlohmann::json::parse(text_of(folder_ / "hang_rank0.json"))["collectives"];
  ASSERT_GE(last.size(), 2u);
  const auto &first = last[last.size() - 2], &second = last[last.size() - 1];
  EXPECT_EQ(first["tag"], "bucket 2");
  EXPECT_NE(first["finished_ns"], 0);
  EXPECT_EQ(second["tag"], "bucket 3");
  EXPECT_EQ(second["finished_ns"], 0);
}

}  // namespace
}  // namespace xylem
