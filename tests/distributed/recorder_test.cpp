// SPDX-License-Identifier: Apache-2.0
#include "distributed/record/recorder.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace xylem::recorder {
namespace {

Collective last() { return recent().back(); }

TEST(Recorder, CountsCollectivesByGroupAndPointToPointByPeer) {
  uint64_t first = begin({.group = "a", .op = "all_reduce", .count = 10});
  EXPECT_EQ(last().sequence, 1u);
  begin({.group = "a", .op = "send to 3", .count = 1});
  EXPECT_EQ(last().sequence, 1u);
  begin({.group = "a", .op = "send to 2", .count = 1});
  EXPECT_EQ(last().sequence, 1u);
  begin({.group = "b", .op = "broadcast"});
  EXPECT_EQ(last().sequence, 1u);
  begin({.group = "a", .op = "broadcast", .count = 3});
  EXPECT_EQ(last().sequence, 2u);
  begin({.group = "a", .op = "send to 3", .count = 1});
  EXPECT_EQ(last().sequence, 2u);

  started(first);
  finished(first);
  for (const Collective& c : recent())
    if (c.group == "a" && c.op == "all_reduce") {
      EXPECT_GT(c.enqueued_ns, 0);
      EXPECT_GE(c.started_ns, c.enqueued_ns);
      EXPECT_GE(c.finished_ns, c.started_ns);
    } else {
      EXPECT_EQ(c.finished_ns, 0) << c.op;
    }
}

TEST(Recorder, ForgetsTheOldestAndIgnoresItsHandle) {
  uint64_t old = begin({.group = "ring", .op = "all_reduce"});
  for (size_t i = 0; i < kCapacity; ++i) finished(begin({.group = "ring", .op = "all_reduce"}));
  finished(old);
  finished(0);
  finished(old + 10 * kCapacity);
  auto list = recent();
  ASSERT_EQ(list.size(), kCapacity);
  EXPECT_EQ(list.front().sequence, 2u);
  EXPECT_EQ(list.back().sequence, kCapacity + 1);
}

TEST(Recorder, KnowsTheOldestThatIsUnfinished) {
  for (size_t i = 0; i <= kCapacity; ++i)
    finished(begin({.group = "open", .op = "all_reduce"}));  // push out the others
  EXPECT_EQ(oldest_unfinished_ns(), 0);
  uint64_t a = begin({.group = "open", .op = "all_reduce", .enqueued_ns = 11});
  uint64_t b = begin({.group = "open", .op = "all_reduce", .enqueued_ns = 22});
  EXPECT_EQ(oldest_unfinished_ns(), 11);
  finished(b);
  EXPECT_EQ(oldest_unfinished_ns(), 11);
  uint64_t c = begin({.group = "open", .op = "all_reduce", .enqueued_ns = 33});
  finished(a);
  EXPECT_EQ(oldest_unfinished_ns(), 33);
  finished(c);
  EXPECT_EQ(oldest_unfinished_ns(), 0);
}

TEST(Recorder, KeepsEverythingForATrace) {
  begin({.group = "trace", .op = "before"});
  keep_all(true);
  for (size_t i = 0; i < 2 * kCapacity + 5; ++i) finished(begin({.group = "trace", .op = "all_reduce"}));
  auto list = take();
  ASSERT_EQ(list.size(), 2 * kCapacity + 5);
  for (size_t i = 0; i < list.size(); ++i) {
    ASSERT_EQ(list[i].sequence, i + 2);
    ASSERT_GT(list[i].finished_ns, 0);
  }
  begin({.group = "trace", .op = "all_reduce"});
  EXPECT_EQ(take().size(), 1u);
  keep_all(false);
}

TEST(Recorder, TagsAreOfTheThreadAndNest) {
  Tag outer("bucket 1");
  {
    Tag inner("bucket 2");
    begin({.group = "tags", .op = "all_reduce"});
    EXPECT_EQ(last().tag, "bucket 2");
    std::thread([] { EXPECT_EQ(current_tag(), ""); }).join();
  }
  begin({.group = "tags", .op = "all_reduce"});
  EXPECT_EQ(last().tag, "bucket 1");
  begin({.group = "tags", .op = "all_reduce", .tag = "own"});
  EXPECT_EQ(last().tag, "own");
}

TEST(Recorder, ActivityIsOfTheMainThread) {
  EXPECT_EQ(current_activity(), "");
  {
    Activity step("the data loader");
    {
      Activity save("a checkpoint");
      EXPECT_EQ(current_activity(), "a checkpoint");
      std::thread([] {
        Activity other("elsewhere");
        EXPECT_EQ(current_activity(), "a checkpoint");
      }).join();
      EXPECT_EQ(current_activity(), "a checkpoint");
    }
    EXPECT_EQ(current_activity(), "the data loader");
  }
  EXPECT_EQ(current_activity(), "");
}

TEST(Recorder, SignatureTellsWhatDiffers) {
  auto run = [](const std::string& group, int64_t count, DType type, const char* op) {
    begin({.group = group, .op = "broadcast", .count = 1});
    begin({.group = group, .op = op, .dtype = type, .count = count});
    return signature(group);
  };
  Signature base = run("s0", 8, f32, "all_reduce");
  EXPECT_EQ(base.count, 2u);
  EXPECT_EQ(base, run("s1", 8, f32, "all_reduce"));
  EXPECT_NE(base, run("s2", 9, f32, "all_reduce"));
  EXPECT_NE(base, run("s3", 8, bf16, "all_reduce"));
  EXPECT_NE(base, run("s4", 8, f32, "reduce_scatter"));
  begin({.group = "s0", .op = "send to 1", .count = 1});
  EXPECT_EQ(base, signature("s0"));
  EXPECT_EQ(run("s5", 8, f32, "all_to_all"), run("s6", 9, f32, "all_to_all"));
  EXPECT_EQ(signature("never").count, 0u);
}

TEST(Recorder, ManyThreadsLoseNothing) {
  keep_all(true);
  constexpr int kRounds = 8, kThreads = 4, kEach = int(kCapacity) / kThreads;
  // No round pushes out its own entries: a thread that sleeps between the two calls still finds its entry.
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < kEach; ++i) finished(begin({.group = "threads", .op = "all_reduce", .count = i}));
      });
    for (std::thread& t : threads) t.join();
  }
  auto list = take();
  keep_all(false);
  std::set<uint64_t> sequences;
  for (const Collective& c : list) {
    sequences.insert(c.sequence);
    EXPECT_GT(c.finished_ns, 0);
  }
  EXPECT_EQ(sequences.size(), size_t(kRounds * kThreads * kEach));
}

TEST(Recorder, AReplayEntersTheCollectivesOfItsGraph) {
  for (size_t i = 0; i <= kCapacity; ++i) finished(begin({.group = "graph", .op = "warm_up"}));  // push out the others
  std::vector<Collective> graph;
  for (int64_t count : {10, 20}) {
    Tag tag("bucket " + std::to_string(count / 10));
    graph.push_back(captured(begin({.group = "graph", .op = "all_reduce", .count = count, .algorithm = "ring"})));
  }
  EXPECT_EQ(oldest_unfinished_ns(), 0) << "nothing runs while it is captured";
  const uint64_t before = signature("graph").count;

  for (uint64_t round = 0; round < 2; ++round) {
    std::vector<uint64_t> handles = replay(graph);
    ASSERT_EQ(handles.size(), 2u);
    EXPECT_GT(oldest_unfinished_ns(), 0);
    auto list = recent();
    for (size_t i = 0; i < 2; ++i) {
      const Collective& c = list[list.size() - 2 + i];
      EXPECT_TRUE(c.graph);
      EXPECT_EQ(c.sequence, before + 2 * round + i + 1);
      EXPECT_EQ(c.count, int64_t(10 * (i + 1)));
      EXPECT_EQ(c.tag, "bucket " + std::to_string(i + 1));
      EXPECT_EQ(c.algorithm, "ring");
      EXPECT_EQ(c.started_ns, 0);
      EXPECT_EQ(c.finished_ns, 0);
    }
    started(handles[0]), started(handles[1]);
    finished(handles[0]);
    EXPECT_GT(oldest_unfinished_ns(), 0);
    finished(handles[1]);
    EXPECT_EQ(oldest_unfinished_ns(), 0);
  }

  // Ranks that agree have one signature, also where only one of them replays what the other calls.
  for (const char* group : {"replayed", "called"}) {
    Collective c = captured(begin({.group = group, .op = "all_reduce", .count = 5}));
    group[0] == 'r' ? finished(replay({c})[0]) : finished(begin({.group = group, .op = "all_reduce", .count = 5}));
  }
  EXPECT_EQ(signature("replayed"), signature("called"));
}

TEST(Recorder, KnowsTheGroups) {
  group("world/data", {0, 2});
  EXPECT_EQ(groups().at("world/data"), (std::vector<int>{0, 2}));
}

}  // namespace
}  // namespace xylem::recorder
