// SPDX-License-Identifier: Apache-2.0
// The verdict after a hang, on made-up dumps.
#include "distributed/watchdog/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/util/check.h"

namespace xylem::watchdog {
namespace {

using recorder::Collective;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// `n` ranks that have done all_reduce 1 to 811 and wait in 812.
class Verdict : public testing::Test {
 protected:
  Verdict() {
    for (int r = 0; r < 4; ++r) {
      RankDump d;
      d.rank = r;
      d.host = "node" + std::to_string(r / 2);
      d.pid = 1000 + r;
      d.groups = {{"world", {0, 1, 2, 3}}};
      dumps.push_back(d);
      for (uint64_t s = 800; s < 812; ++s) add(r, "all_reduce", s, true);
    }
  }
  Collective& add(int rank, const std::string& op, uint64_t sequence, bool finished = false,
                  const std::string& group = "world") {
    dumps[size_t(rank)].collectives.push_back({.group = group,
                                               .sequence = sequence,
                                               .op = op,
                                               .dtype = f32,
                                               .count = 6553600,
                                               .tag = "bucket 3",
                                               .enqueued_ns = 1,
                                               .finished_ns = finished ? 2 : 0});
    return dumps[size_t(rank)].collectives.back();
  }
  void all_but(int absent) {
    for (int r = 0; r < 4; ++r)
      if (r != absent) add(r, "all_reduce", 812);
  }
  void lose(int rank, RankState state) {
    dumps[size_t(rank)].collectives.clear();
    dumps[size_t(rank)].groups.clear();
    dumps[size_t(rank)].state = state;
  }
  std::vector<RankDump> dumps;
};

TEST_F(Verdict, ARankThatNeverArrives) {
  all_but(3);
  dumps[3].activity = "the data loader";
  EXPECT_EQ(verdict(dumps),
            "rank 3 never entered all_reduce #812 (bucket 3, f32 x 6553600); it is in the data loader\n");
  dumps[3].activity = "";
  EXPECT_THAT(verdict(dumps), HasSubstr("rank 3 never entered all_reduce #812 (bucket 3, f32 x 6553600); it is busy"));
}

TEST_F(Verdict, ARankWhoseLastCollectiveWasNotSeenToFinish) {
  all_but(3);
  dumps[3].collectives.back().finished_ns = 0;  // it never asked whether 811 was done
  EXPECT_THAT(verdict(dumps), HasSubstr("rank 3 never entered all_reduce #812"));
}

TEST_F(Verdict, ARankThatThrew) {
  all_but(1);
  dumps[1].error = "the disk is full";
  EXPECT_EQ(verdict(dumps),
            "rank 1 threw: the disk is full\n"
            "ranks 0, 2 and 3 wait in all_reduce #812 (bucket 3, f32 x 6553600) for rank 1\n");
  for (RankDump& d : dumps) d.error = "no such model";
  EXPECT_THAT(verdict(dumps), HasSubstr("ranks 0-3 threw: no such model"));
}

TEST_F(Verdict, ADifferentCollective) {
  all_but(3);
  add(3, "broadcast", 812);
  EXPECT_THAT(verdict(dumps), AllOf(HasSubstr("ranks 0-2 are in all_reduce #812 (bucket 3), rank 3 in broadcast #812"),
                                    Not(HasSubstr("never"))));
  // Also if it seemed to succeed and the job hung later.
  for (int r = 0; r < 4; ++r) dumps[size_t(r)].collectives.back().finished_ns = 5;
  all_but(-1);
  dumps[3].collectives.pop_back();
  EXPECT_THAT(verdict(dumps), AllOf(HasSubstr("rank 3 in broadcast #812"), Not(HasSubstr("never"))));
}

TEST_F(Verdict, DifferentSizesAndTypes) {
  all_but(3);
  add(3, "all_reduce", 812).count = 1000;
  EXPECT_EQ(
      verdict(dumps),
      "ranks disagree on the size of all_reduce #812: f32 x 6553600 (bucket 3) (ranks 0-2) and f32 x 1000 (bucket "
      "3) (rank 3)\n");
  dumps[3].collectives.back() = dumps[2].collectives.back();
  dumps[3].collectives.back().dtype = bf16;
  EXPECT_THAT(verdict(dumps), HasSubstr("bf16 x 6553600"));
  // What differs by design.
  for (RankDump& d : dumps) d.collectives.back().op = "all_to_all";
  dumps[3].collectives.back().dtype = f32;
  dumps[3].collectives.back().count = 7;
  EXPECT_THAT(verdict(dumps), Not(HasSubstr("disagree")));
}

TEST_F(Verdict, RanksThatAreGoneStoppedOrSilent) {
  all_but(2);
  lose(2, RankState::gone);
  EXPECT_THAT(verdict(dumps),
              AllOf(HasSubstr("rank 2 is gone: process 1002 on node1 no longer exists"),
                    HasSubstr("ranks 0, 1 and 3 wait in all_reduce #812 (bucket 3, f32 x 6553600) for rank 2"),
                    Not(HasSubstr("never"))));
  dumps[2].error = "was ended by SIGSEGV";
  EXPECT_THAT(verdict(dumps), HasSubstr("process 1002 on node1 was ended by SIGSEGV"));
  lose(2, RankState::stopped);
  EXPECT_THAT(verdict(dumps), AllOf(HasSubstr("rank 2 is stopped"), HasSubstr("SIGSTOP")));
  lose(2, RankState::silent);
  EXPECT_THAT(verdict(dumps), AllOf(HasSubstr("rank 2 does not answer"), HasSubstr("shared by all hosts")));
}

TEST_F(Verdict, FollowsAChainOfGroups) {
  // Rank 3 is late for 0 and 2 since it waits for 1, which is at fault.
  for (int r : {0, 2}) add(r, "all_reduce", 812);
  for (int r : {1, 3}) dumps[size_t(r)].groups["world/tensor.1"] = {1, 3};
  add(3, "all_gather", 5, false, "world/tensor.1");
  dumps[1].activity = "a checkpoint";
  std::string text = verdict(dumps);
  EXPECT_THAT(text, testing::StartsWith("rank 1 never entered all_"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "rank 1 never entered all_gather #5 (bucket 3, f32 x 6553600) of world/tensor.1; it is in a checkpoint"));
  EXPECT_THAT(text,
              HasSubstr("rank 3 never entered all_reduce #812 (bucket 3, f32 x 6553600); it waits in all_gather #5"));
}

TEST_F(Verdict, GroupsOfOneNameAndOtherRanksAreApart) {
  for (int r = 0; r < 4; ++r) dumps[size_t(r)].groups["data"] = r < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  for (int r : {0, 1}) add(r, "all_reduce", 1, true, "data");
  for (int r : {2, 3}) add(r, "broadcast", 1, true, "data");
  EXPECT_EQ(verdict(dumps), "no rank waits in a collective, and no rank failed\n");
}

TEST_F(Verdict, Messages) {
  add(0, "send to 3", 1);
  dumps[3].activity = "the data loader";
  EXPECT_THAT(verdict(dumps),
              HasSubstr("rank 3 never called receive from 0 #1, for which rank 0 waits in send to 3 #1 (bucket "
                        "3, f32 x 6553600); it is in the data loader"));
  add(3, "receive from 0", 1).count = 5;
  EXPECT_THAT(verdict(dumps), HasSubstr("rank 0 calls send to 3 #1 (bucket 3, f32 x 6553600) but rank 3 calls receive "
                                        "from 0 #1 (bucket 3, f32 x 5)"));
}

TEST_F(Verdict, AllAreThereAndNothingMoves) {
  all_but(-1);
  EXPECT_THAT(verdict(dumps), HasSubstr("all ranks entered all_reduce #812 (bucket 3, f32 x 6553600) alike, but ranks "
                                        "0-3 do not leave it"));
}

TEST_F(Verdict, ARankThatDoesNotReplayItsGraph) {
  for (int r = 0; r < 3; ++r)
    for (uint64_t s : {812, 813, 814}) add(r, "all_reduce", s).graph = true;
  dumps[3].activity = "the data loader";
  EXPECT_EQ(verdict(dumps),
            "rank 3 never entered all_reduce #812 (bucket 3, f32 x 6553600, in a CUDA graph); it is in the data "
            "loader\n");
  dumps[3].error = "the disk is full";
  EXPECT_THAT(verdict(dumps), AllOf(HasSubstr("rank 3 threw: the disk is full"), HasSubstr("wait in all_reduce #812")));
}

TEST_F(Verdict, AGraphThatAllReplayAndNobodyLeaves) {
  for (int r = 0; r < 4; ++r)
    for (uint64_t s : {812, 813, 814}) add(r, "all_reduce", s, s < 813 || (s == 813 && r == 0)).graph = true;
  EXPECT_THAT(verdict(dumps), HasSubstr("all ranks entered all_reduce #813 (bucket 3, f32 x 6553600, in a CUDA graph) "
                                        "alike, but ranks 1-3 do not leave it"));
}

TEST_F(Verdict, ARankThatHasFinished) {
  all_but(2);
  dumps[2].finished = true;
  add(2, "all_gather", 812).tag = recorder::kAtEnd;
  EXPECT_EQ(verdict(dumps),
            "rank 2 has finished its work, while ranks 0, 1 and 3 wait in all_reduce #812 (bucket 3, f32 x 6553600): "
            "all ranks must take the same number of steps; see that each has as many batches\n");
  dumps[2].collectives[5].op = "broadcast";  // what went wrong before comes first
  EXPECT_THAT(verdict(dumps), AllOf(HasSubstr("rank 2 in broadcast #805"), Not(HasSubstr("has finished"))));
  dumps[2].collectives[5].op = "all_reduce";
  dumps[1].finished = true;  // and one that waits elsewhere than in a collective does not wait for it
  for (int r : {0, 1, 3}) dumps[size_t(r)].collectives.pop_back();
  EXPECT_THAT(verdict(dumps), AllOf(HasSubstr("never entered"), Not(HasSubstr("has finished"))));
}

TEST_F(Verdict, RanksThatCouldNotWriteAnything) {
  all_but(3);
  dumps[1].error = "cannot write 'metrics.jsonl'";
  for (int r : {0, 2, 3}) {
    lose(r, RankState::silent);
    dumps[size_t(r)].unread = "'runs/a' cannot be written: No space left on device";
  }
  EXPECT_THAT(verdict(dumps), AllOf(testing::StartsWith("rank 1 threw: cannot write 'metrics.jsonl'\n"),
                                    HasSubstr("nothing is known of ranks 0, 2 and 3: 'runs/a' cannot be written"),
                                    Not(HasSubstr("does not answer"))));
}

TEST_F(Verdict, DumpsSurviveTheJourney) {
  all_but(3);
  dumps[0].collectives.back().graph = true;
  dumps[0].peers = {{1, RankState::stopped}};
  dumps[0].error = "bad \xff byte";
  dumps[0].activity = "a checkpoint";
  dumps[0].exit_code = 74;
  dumps[0].finished = true;
  RankDump back = parse_dump(to_json(dumps[0], "job 1"), "job 1");
  EXPECT_EQ(back.peers, dumps[0].peers);
  EXPECT_EQ(back.groups, dumps[0].groups);
  EXPECT_EQ(back.activity, "a checkpoint");
  EXPECT_EQ(back.exit_code, 74);
  EXPECT_TRUE(back.finished);
  EXPECT_THAT(back.error, testing::StartsWith("bad "));
  ASSERT_EQ(back.collectives.size(), dumps[0].collectives.size());
  EXPECT_EQ(describe(back.collectives.back()), describe(dumps[0].collectives.back()));
  EXPECT_EQ(back.collectives.back().finished_ns, 0);
  EXPECT_THROW(parse_dump(to_json(dumps[0], "job 1"), "job 2"), Error);
}

TEST(NameRanks, InWords) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(name_ranks({0, 1, 2, 5}), "ranks 0-2 and 5");
  EXPECT_EQ(name_ranks({0, 2, 4}), "ranks 0, 2 and 4");
}

}  // namespace
}  // namespace xylem::watchdog
