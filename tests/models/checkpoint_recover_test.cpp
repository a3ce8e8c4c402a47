// SPDX-License-Identifier: Apache-2.0
// What becomes of a save whose processes were killed.
#include "models/checkpoint/recover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "models/checkpoint/reader.h"
#include "models/checkpoint/snapshot.h"
#include "models/checkpoint/writer.h"
#include "tests/models/checkpoint_ranks.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using checkpoint::Job;
using checkpoint::Snapshot;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class RecoverTest : public testing::Test {
 protected:
  RecoverTest() {
    fs::create_directories(shared_);
    setenv("XY_SNAPSHOT_DIR", shared_.c_str(), 1);
    Session s(1);
    Checkpoints(run_).save(1, s.parts);
  }
  ~RecoverTest() override { unsetenv("XY_SNAPSHOT_DIR"); }

  // What rank `rank` of `size` saves at step 2.
  Job job(int rank, int size) {
    std::vector<Piece> all = whole_pieces("model", state_dict(state_.net));
    for (Piece& p : whole_pieces("optimizer", state_.opt.state())) all.push_back(p);
    for (Piece& p : whole_pieces("ema", state_.ema.state())) all.push_back(p);
    return {.dir = checkpoints_,
            .attempt = "job",
            .step = 2,
            .keep = 3,
            .rank = rank,
            .size = size,
            .pieces = share_of(all, rank, size),
            .random = {.seed = 40 + uint64_t(rank), .step = 2, .op = 7},
            .ema_updates = 11,
            .extra = {{"samples", "16"}}};
  }
  // The process ends when it has copied its state, and before it writes any.
  void die_with_copy(Job job) {
    Snapshot s(checkpoint::snapshot_file(job.attempt, job.rank));
    s.take(job);
    checkpoint::begin(job);
    s.leave();
  }
  // Resumes on so many ranks and expects that step's values.
  std::vector<std::string> expect_resumed(int ranks, int64_t step) {
    Session expected(static_cast<double>(step));
    std::vector<std::string> told;
    on_ranks(ranks, [&](const Peers& peers) {
      Session s;
      std::vector<std::string> notes;
      EXPECT_EQ(Checkpoints(run_, 3, peers).resume(s.parts, &notes), step);
      EXPECT_EQ(s.values(), expected.values());
      if (step == 2) {
        EXPECT_EQ(s.ema.updates(), 11);
        EXPECT_EQ(s.parts.extra.at("samples"), "16");
      }
      if (peers.rank == 0) told = notes;
    });
    if (step == 2) {
      EXPECT_EQ(CheckpointReader(Checkpoints(run_).path(2)).info().rng.at(0).seed, 40u);
      if (ranks == 1) {  // threads share one generator
        EXPECT_EQ(rng::state().seed, 40u);
      }
    }
    EXPECT_TRUE(step == 1 || Checkpoints::damage(Checkpoints(run_).path(2)).empty());
    EXPECT_TRUE(fs::is_empty(shared_));
    return told;
  }
  Scratch scratch_;
  const std::string run_ = scratch_ / "run", checkpoints_ = run_ + "/checkpoints", shared_ = scratch_ / "shared";
  Session state_{2};
};

TEST_F(RecoverTest, AnyNumberOfRanksFinishesWhatAnyNumberHasLeft) {
  for (int writers : {1, 2, 5})
    for (int readers : {1, 2, 3}) {
      for (int r = 0; r < writers; ++r) die_with_copy(job(r, writers));
      EXPECT_THAT(expect_resumed(readers, 2), ElementsAre(HasSubstr("finished the checkpoint of step 2")));
      for (const auto& entry : fs::directory_iterator(Checkpoints(run_).path(2)))
        EXPECT_FALSE(entry.path().filename().string().starts_with("rank")) << entry.path();
      fs::remove_all(Checkpoints(run_).path(2));
    }
}

TEST_F(RecoverTest, ARankThatHasWrittenItsPartMayHaveOverwrittenItsCopy) {
  checkpoint::write(job(1, 2), false);
  Job next = job(1, 2);
  next.step = 3;
  die_with_copy(next);
  die_with_copy(job(0, 2));
  EXPECT_THAT(expect_resumed(2, 2), ElementsAre(HasSubstr("finished the checkpoint of step 2"),
                                                HasSubstr("step 3 was being written when an earlier job ended")));
}

TEST_F(RecoverTest, APartThatIsNowhereLosesIt) {
  for (int lost : {0, 1}) {
    for (int r : {0, 1})
      if (r != lost) die_with_copy(job(r, 2));
    EXPECT_THAT(expect_resumed(2, 1), ElementsAre(HasSubstr("the checkpoint of step 2 was being written")));
    for (const auto& aside : checkpoint::list_asides(checkpoints_))
      fs::remove_all(checkpoint::aside_path(checkpoints_, aside));
  }
}

TEST_F(RecoverTest, CopiesThatWereNotAllMadeDoNotCount) {
  Job unsealed = job(0, 1);
  die_with_copy(unsealed);
  {
    std::fstream file(checkpoint::snapshot_file("job", 0), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(16);
    file.write("\0\0\0\0\0\0\0\0", 8);
  }
  EXPECT_THAT(expect_resumed(1, 1), ElementsAre(HasSubstr("is lost")));
}

TEST_F(RecoverTest, WhatIsDoneOnlyLacksItsName) {
  on_ranks(2, [&](const Peers& peers) {
    Session s(2);
    s.parts.extra["samples"] = "16";
    s.ema.set_updates(11);
    rng::set_state({.seed = 40, .step = 1, .op = 1});
    Checkpoints(run_, 3, peers).save(2, s.parts);
  });
  std::string aside = checkpoint::aside_path(checkpoints_, {2, "job"});
  fs::rename(Checkpoints(run_).path(2), aside);
  write_file(aside + "/rank0001.json", "{}");  // reports go when all else is there
  EXPECT_THAT(expect_resumed(2, 2), ElementsAre(HasSubstr("finished the checkpoint of step 2")));
  EXPECT_FALSE(fs::exists(Checkpoints(run_).path(2) + "/rank0001.json"));
}

TEST_F(RecoverTest, CopiesThatNobodyLacksGoAndThoseOfTheLivingStay) {
  die_with_copy(job(0, 1));
  fs::remove_all(checkpoint::aside_path(checkpoints_, {2, "job"}));
  write_file(shared_ + "/xylem_other_rank0000", "no copies at all");
  write_file(shared_ + "/another_program", "");
  Job living = job(3, 4);
  living.attempt = "living";
  Snapshot s(checkpoint::snapshot_file("living", 3));
  s.take(living);
  EXPECT_THAT(checkpoint::recover(checkpoints_, {}), IsEmpty());
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(shared_)) left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("another_program", "xylem_living_rank0003"));
}

TEST_F(RecoverTest, SavesFromSharedMemoryAndLeavesNothingThere) {
  on_ranks(2, [&](const Peers& peers) {
    Session s(3);
    Checkpoints checkpoints(run_, 3, peers, SaveFrom::shared_memory);
    for (int64_t step : {3, 4}) {
      checkpoints.save(step, s.parts);
      EXPECT_FALSE(fs::is_empty(shared_));
    }
    checkpoints.finish();
  });
  EXPECT_TRUE(fs::is_empty(shared_));
  Session s, expected(3);
  EXPECT_EQ(Checkpoints(run_).resume(s.parts), 4);
  EXPECT_EQ(s.values(), expected.values());
}

TEST_F(RecoverTest, CudaStateArrivesInSharedMemoryBeforeItChanges) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  Linear saved(2048, 2048), other(2048, 2048);
  saved.to(Device::cuda());
  auto values = saved.weight.to_vector<float>();
  testing::internal::CaptureStderr();
  {
    Checkpoints checkpoints(scratch_ / "gpu", 3, {}, SaveFrom::shared_memory);
    for (int64_t step : {1, 2}) {  // the second time the memory is there
      NoGrad guard;
      saved.weight.detach().copy_(from_vector(values, saved.weight.shape()));
      checkpoints.save(step, {saved});
      saved.weight.detach().fill_(-1);
    }
    checkpoints.finish();
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  for (int64_t step : {1, 2}) {
    load_state_dict(other, CheckpointReader(Checkpoints(scratch_ / "gpu").path(step)).all("model"));
    EXPECT_EQ(other.weight.to_vector<float>(), values);
  }
}

TEST_F(RecoverTest, WithoutRoomItSavesFromItsOwnMemory) {
  setenv("XY_SNAPSHOT_DIR", "/nowhere", 1);
  Session s(3);
  testing::internal::CaptureStderr();
  {
    Checkpoints checkpoints(run_, 3, {}, SaveFrom::shared_memory);
    checkpoints.save(3, s.parts);
    checkpoints.save(4, s.parts);
  }
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("rank 0 cannot keep what it saves in shared memory: cannot make '/nowhere"));
  EXPECT_EQ(said.find("cannot keep"), said.rfind("cannot keep"));
  EXPECT_THAT(Checkpoints(run_).steps(), ElementsAre(1, 3, 4));
}

}  // namespace
}  // namespace xylem
