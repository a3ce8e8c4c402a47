// SPDX-License-Identifier: Apache-2.0
// `xylem run` and `xylem checkpoint`. Jobs of several ranks are in run_ranks_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/checkpoint/safetensors.h"
#include "tests/cli/program.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using program::Started;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class RunCli : public testing::Test {
 protected:
  void SetUp() override {
    program::write_tiny_job(dir_, "[train]\nsteps = 300\nglobal_batch = 4\nlog_every = 1\n[checkpoint]\nevery = 20\n");
  }
  std::string config() const { return dir_ / "tiny.toml"; }
  std::vector<std::string> run(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"run", config(), "--restarts", "2", "--backoff", "0.05"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Scratch scratch_;
  const fs::path dir_ = scratch_.path();
};

TEST_F(RunCli, StartsAgainAfterAKillAndEndsWithTheSameBytes) {
  Outcome alone = program::xylem("train " + config());
  ASSERT_EQ(alone.code, 0) << alone.text;
  auto expected = program::contents(program::checkpoint(dir_ / "run", 300));

  Started job(run({"--fresh"}), dir_ / "log");
  ASSERT_TRUE(job.until([&] { return fs::exists(program::checkpoint(dir_ / "run", 100)); })) << job.text();
  auto ranks = program::trainers(config());
  ASSERT_EQ(ranks.size(), 1u);
  kill(ranks[0], SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.text();
  EXPECT_THAT(job.text(), AllOf(HasSubstr("ended by signal 9"), HasSubstr("the newest checkpoint is of step"),
                                HasSubstr("restart 1 of 2 with 1 rank"), HasSubstr("resuming after step"),
                                HasSubstr("finished after 1 restart"), HasSubstr("behind the training")));
  EXPECT_TRUE(program::contents(program::checkpoint(dir_ / "run", 300)) == expected);
}

TEST_F(RunCli, SigtermSavesAndEndsWithCode75) {
  Started job(run({"--set", "train.steps=1000000"}), dir_ / "log");
  ASSERT_TRUE(job.until([&] { return fs::exists(program::checkpoint(dir_ / "run", 20)); })) << job.text();
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 75) << job.text();
  EXPECT_THAT(job.text(), AllOf(HasSubstr("stopped after step"), HasSubstr("to go on: xylem run -np 1 --restarts 2"),
                                HasSubstr("--set train.steps=1000000"), Not(HasSubstr("restart 1"))));
  EXPECT_FALSE(fs::is_empty(dir_ / "run/checkpoints"));
}

TEST_F(RunCli, ARankThatIsToldToStopByOthersIsStartedAgain) {
  Started job(run({"--set", "train.steps=600"}), dir_ / "log");
  ASSERT_TRUE(job.until([&] { return fs::exists(program::checkpoint(dir_ / "run", 20)); })) << job.text();
  auto ranks = program::trainers(config());
  ASSERT_EQ(ranks.size(), 1u);
  kill(ranks[0], SIGUSR1);
  kill(ranks[0], SIGUSR1);  // it may come twice
  EXPECT_EQ(job.wait(), 0) << job.text();
  EXPECT_THAT(job.text(), AllOf(HasSubstr("told to stop, by others"), HasSubstr("finished after 1 restart")));
}

TEST_F(RunCli, GivesUpWhenNoRestartIsLeft) {
  Outcome o =
      program::xylem("run " + config() + " --restarts 1 --backoff 0.01 --set optimizer.lr=1e30 --set train.clip=0");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, AllOf(HasSubstr("the job failed with code 1"), HasSubstr("restart 1 of 1"),
                            HasSubstr("no restart is left of 1")));
}

TEST_F(RunCli, MistakesEndAtOnce) {
  auto fails = [&](const std::string& arguments, const std::string& needle) {
    Outcome o = program::xylem("run " + arguments);
    EXPECT_NE(o.code, 0) << arguments;
    EXPECT_THAT(o.text, AllOf(HasSubstr(needle), Not(HasSubstr("restart 1"))));
  };
  fails(config() + " --restarts 3 --set train.stepss=1", "unknown key");
  fails(config() + " -np 3 --restarts 3", "3 ranks cannot share train.global_batch = 4 evenly");
  fails(config() + " -np 0", "np");
  fails("/nowhere.toml", "there is no configuration file");
  fails("", "CONFIG");
}

TEST_F(RunCli, GoesOnWithFewerRanksWhenTheSameNumberDoesNotStart) {
  // Stands in for mpirun on a cluster that has lost a host.
  fs::path mpirun = dir_ / "mpirun";
  std::ofstream(mpirun) << "#!/bin/sh\necho \"called with $*\"\n[ $2 -gt 2 ] && exit 1\n"
                           "while [ \"$1\" != train ]; do last=$1; shift; done\nexec $last \"$@\"\n";
  fs::permissions(mpirun, fs::perms::owner_all);
  std::string command =
      "run -np 4 " + config() + " --restarts 2 --backoff 0.01 --mpirun " + mpirun.string() + " --set train.steps=30";
  Outcome o = program::xylem(command + " --elastic -- --hostfile hosts");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("called with -np 4 --bind-to none --hostfile hosts " + program::path()),
                    HasSubstr("before it began to train"), HasSubstr("4 ranks do not start again: going on with 2"),
                    HasSubstr("called with -np 2"), HasSubstr("finished after 2 restarts")));
  o = program::xylem(command);
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, Not(HasSubstr("called with -np 2")));
}

TEST_F(RunCli, EndsAMpirunThatWaitsForHostsAfterTheVerdict) {
  fs::path mpirun = dir_ / "mpirun";
  std::ofstream(mpirun) << "#!/bin/sh\n[ -e " << (dir_ / "run").string() << " ] && exit 3\nmkdir "
                        << (dir_ / "run").string() << "\necho lost > " << (dir_ / "run/hang_verdict.txt").string()
                        << "\nsleep 300\n";
  fs::permissions(mpirun, fs::perms::owner_all);
  Outcome o = program::xylem("run -np 2 " + config() + " --restarts 1 --backoff 0.01 --mpirun " + mpirun.string());
  EXPECT_EQ(o.code, 3) << o.text;
  EXPECT_THAT(o.text, AllOf(HasSubstr("mpirun' does not end although the job has"), HasSubstr("failed with code 87"),
                            HasSubstr("restart 1 of 1")));
}

TEST_F(RunCli, ListsAndJoinsCheckpoints) {
  ASSERT_EQ(program::xylem("train " + config() + " --set train.steps=60").code, 0);
  fs::path run = dir_ / "run", out = dir_ / "joined.safetensors";
  fs::resize_file(program::checkpoint(run, 60) / "optimizer.safetensors", 10);
  Outcome o = program::xylem("checkpoint list " + run.string());
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.text,
              AllOf(HasSubstr("20      1"), HasSubstr("whole\n"), HasSubstr("damaged: optimizer.safetensors has 10")));
  EXPECT_EQ(program::xylem("checkpoint list " + dir_.string()).code, 1);

  o = program::xylem("checkpoint consolidate " + run.string() + " --out " + out.string());
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, AllOf(HasSubstr("passing over the damaged checkpoint"), HasSubstr("step_00000040")));
  std::map<std::string, std::vector<float>> joined, saved;
  for (const NamedTensor& t : load_safetensors(out)) joined[t.name] = t.tensor.to_vector<float>();
  for (const NamedTensor& t : load_safetensors(program::checkpoint(run, 40) / "model.safetensors"))
    saved[t.name] = t.tensor.to_vector<float>();
  EXPECT_TRUE(joined == saved);
  o = program::xylem("checkpoint consolidate " + program::checkpoint(run, 20).string() + " --out " + out.string() +
                     " --part ema --dtype bf16");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_EQ(load_safetensors(out).front().tensor.dtype(), bf16);
  EXPECT_NE(program::xylem("checkpoint consolidate " + run.string() + " --out " + out.string() + " --dtype int8").code,
            0);
}

}  // namespace
}  // namespace xylem
