// SPDX-License-Identifier: Apache-2.0
// Checkpoints of several processes; here they are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "models/checkpoint/consolidate.h"
#include "models/checkpoint/reader.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/writer.h"
#include "tests/models/checkpoint_ranks.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class ShardedCheckpoint : public testing::Test {
 protected:
  void save(int ranks, int64_t step, double offset) {
    on_ranks(ranks, [&](const Peers& peers) {
      Session s(offset);
      Checkpoints checkpoints(dir_, 3, peers);
      checkpoints.save(step, s.parts);
      checkpoints.finish();
    });
  }
  std::string folder(int64_t step) const { return Checkpoints(dir_).path(step); }
  Scratch scratch_;
  const std::string dir_ = scratch_.path();
};

TEST(CheckpointPieces, SharesCoverEveryElementOnceInEvenParts) {
  std::vector<Piece> all = whole_pieces("model", {{"a", arange(1000, f32)},
                                                  {"b", arange(7, i64)},
                                                  {"none", empty({0, 3})},
                                                  {"c", arange(33, u8).reshape({3, 11})}});
  all.push_back(
      {.section = "optimizer", .name = "own", .shape = {50}, .begin = 10, .data = arange(5), .shared = false});
  for (int size : {1, 2, 3, 8, 64}) {
    std::map<std::string, int64_t> next;
    int64_t least = 1 << 20, most = 0;
    for (int rank = 0; rank < size; ++rank) {
      int64_t bytes = 0;
      bool own = false;
      for (const Piece& p : share_of(all, rank, size)) {
        if (p.name == "own") {
          own = true;
          continue;
        }
        EXPECT_EQ(p.begin, next[p.name]) << p.name;
        next[p.name] += p.count();
        if (p.count() > 0) {
          EXPECT_EQ(p.data.reshape({-1}).select(0, 0).item<int64_t>(), p.begin) << p.name;
        }
        bytes += int64_t(p.data.nbytes());
      }
      EXPECT_TRUE(own);
      least = std::min(least, bytes), most = std::max(most, bytes);
    }
    EXPECT_THAT(next, ElementsAre(std::pair("a", 1000), std::pair("b", 7), std::pair("c", 33), std::pair("none", 0)));
    EXPECT_LE(most - least, 12) << size;
  }
}

TEST_F(ShardedCheckpoint, AnyNumberOfRanksReadsWhatAnyNumberWrote) {
  Session saved(5);
  for (int writers : {1, 2, 3, 8}) {
    fs::remove_all(dir_);
    save(writers, 10, 5);
    EXPECT_EQ(fs::exists(folder(10) + "/model.safetensors"), writers == 1);
    EXPECT_EQ(fs::exists(folder(10) + "/manifest.json"), writers > 1);
    for (const auto& entry : fs::directory_iterator(folder(10)))
      EXPECT_TRUE(!entry.path().filename().string().starts_with("rank")) << entry.path();
    EXPECT_THAT(CheckpointReader(folder(10)).info().rng, SizeIs(writers));
    for (int readers : {1, 3})
      on_ranks(readers, [&](const Peers& peers) {
        Session s;
        EXPECT_NE(s.values(), saved.values());
        EXPECT_EQ(Checkpoints(dir_, 3, peers).resume(s.parts), 10);
        EXPECT_EQ(s.values(), saved.values());
      });
  }
}

TEST_F(ShardedCheckpoint, RanksThatHoldPartsGetThemBackForAnyCut) {
  // 100 elements cut at `cuts` by ranks of their own.
  auto pieces = [](const std::vector<int64_t>& cuts, int rank, double offset) {
    int64_t begin = cuts[size_t(rank)], end = cuts[size_t(rank) + 1];
    Tensor t = arange(100, f32).narrow(0, begin, end - begin).clone() + offset;
    return std::vector<Piece>{
        {.section = "optimizer", .name = "m", .shape = {4, 25}, .begin = begin, .data = t, .shared = false}};
  };
  std::atomic<bool> hurry = false;
  std::vector<int64_t> cuts{0, 33, 33, 100};
  for (int rank : {2, 1, 0})
    checkpoint::write({.dir = dir_ + "/checkpoints",
                       .attempt = "a",
                       .step = 1,
                       .rank = rank,
                       .size = 3,
                       .pieces = pieces(cuts, rank, 0)},
                      hurry);
  CheckpointReader reader(folder(1));
  for (const std::vector<int64_t>& other : {std::vector<int64_t>{0, 100}, {0, 20, 100}, {0, 32, 34, 34, 99, 100}})
    for (int rank = 0; rank + 1 < int(other.size()); ++rank) {
      auto mine = pieces(other, rank, 0.5), expected = pieces(other, rank, 0);
      reader.restore(mine);
      EXPECT_EQ(mine[0].data.to_vector<float>(), expected[0].data.to_vector<float>());
    }
  EXPECT_EQ(reader.tensors("optimizer").at(0).shape, Shape({4, 25}));
  Tensor wide = empty({10}, f64);  // another type, across a cut
  reader.read("optimizer", "m", 30, wide);
  EXPECT_EQ(wide.to_vector<double>(), (arange(10, f64) + 30).to_vector<double>());
  EXPECT_THROW(reader.read("optimizer", "m", 95, wide), Error);
  EXPECT_THROW(reader.restore({{.section = "optimizer", .name = "v", .shape = {1}, .data = ones({1})}}), Error);
}

TEST_F(ShardedCheckpoint, TrainingGoesOnWhileItIsWritten) {
  Session s(3), saved(3);
  Checkpoints checkpoints(dir_, 0, {}, SaveFrom::own_memory, 0.05);  // some 20 kB: half a second
  checkpoints.save(1, s.parts);
  EXPECT_FALSE(checkpoints.saved());
  EXPECT_FALSE(fs::exists(folder(1)));
  s.net.fc.weight.detach().fill_(-1);  // what is trained on meanwhile
  auto second = s.values();
  checkpoints.save(2, s.parts);  // waits for the first
  EXPECT_TRUE(fs::exists(folder(1)));
  auto first = checkpoints.saved();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->step, 1);
  EXPECT_GT(first->seconds, 0.2);
  EXPECT_LT(first->copied, first->seconds);
  EXPECT_THAT(first->str(), HasSubstr("checkpoint 1: "));
  s.net.fc.weight.detach().fill_(-2);
  auto last = checkpoints.finish();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->step, 2);
  EXPECT_GT(last->waited, 0.1);
  EXPECT_FALSE(checkpoints.finish());

  Session b;
  EXPECT_EQ(checkpoints.resume(b.parts), 2);
  EXPECT_EQ(b.values(), second);
  fs::remove_all(folder(2));
  EXPECT_EQ(checkpoints.resume(b.parts), 1);
  EXPECT_EQ(b.values(), saved.values());
}

TEST_F(ShardedCheckpoint, OneRanksFailureIsTheirAllsAndTheEarlierOneStays) {
  save(2, 1, 0);
  // Rank 1 cannot write: a folder stands in its way.
  std::string errors[2];
  on_ranks(2, [&](Peers peers) {
    auto gather = peers.gather;
    peers.gather = [gather, this, rank = peers.rank](const std::string& mine) {
      auto all = gather(mine);
      if (rank == 0)
        fs::create_directories(dir_ + "/checkpoints/.saving_step_00000002_" + all[0] + "/ema.rank0001.safetensors");
      gather("");
      return all;
    };
    Session s;
    Checkpoints checkpoints(dir_, 3, peers);
    checkpoints.save(2, s.parts);
    while (errors[peers.rank].empty()) try {
        checkpoints.saved();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } catch (const Error& e) {
        errors[peers.rank] = e.what();
      }
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1: cannot write"));
  EXPECT_THAT(errors[1], HasSubstr("cannot save a checkpoint at step 2"));
  for (const std::string& e : errors) EXPECT_THAT(e, HasSubstr("the one of step 1 is intact"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ + "/checkpoints"), {}), 1);
}

TEST_F(ShardedCheckpoint, WhatAnInterruptedSaveLeavesIsIgnoredAndRemoved) {
  save(2, 1, 0);
  fs::create_directories(dir_ + "/checkpoints/.saving_step_00000002_old");
  fs::create_directories(dir_ + "/checkpoints/.removing_step_00000000_old");
  on_ranks(2, [&](const Peers& peers) {
    Session s;
    Checkpoints checkpoints(dir_, 3, peers);
    EXPECT_EQ(checkpoints.resume(s.parts), 1);
    checkpoints.save(2, s.parts);
    checkpoints.finish();
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ + "/checkpoints"), {}), 2);
}

TEST_F(ShardedCheckpoint, ADamagedPartIsFoundByTheRankThatChecksItAndAllPassItOver) {
  save(3, 1, 1);
  save(3, 2, 2);
  fs::resize_file(folder(2) + "/optimizer.rank0002.safetensors", 100);
  Session saved(1);
  on_ranks(2, [&](const Peers& peers) {
    Session s;
    std::vector<std::string> warnings;
    EXPECT_EQ(Checkpoints(dir_, 3, peers).resume(s.parts, &warnings), 1);
    ASSERT_THAT(warnings, SizeIs(1));
    EXPECT_THAT(warnings[0], HasSubstr("optimizer.rank0002.safetensors has 100 bytes"));
    EXPECT_EQ(s.values(), saved.values());
  });
}

TEST_F(ShardedCheckpoint, ConsolidatesIntoOneFile) {
  save(3, 1, 1);
  Session s(1);
  std::string out = dir_ + "/model.safetensors";
  consolidate(folder(1), out);
  Net other;
  load_state_dict(other, load_safetensors(out));
  for (size_t i = 0; i < state_dict(other).size(); ++i)
    EXPECT_EQ(state_dict(other)[i].tensor.to_vector<float>(), state_dict(s.net)[i].tensor.to_vector<float>());
  std::string bytes = read_file(out);
  fs::remove_all(folder(1));
  save(1, 1, 1);
  consolidate(folder(1), out);
  EXPECT_TRUE(read_file(out) == bytes);
  consolidate(folder(1), out, {.section = "ema", .dtype = bf16});
  for (const NamedTensor& t : load_safetensors(out)) EXPECT_EQ(t.tensor.dtype(), bf16);
  EXPECT_THROW(consolidate(folder(1), dir_ + "/no/where.safetensors"), Error);
  EXPECT_THROW(consolidate(folder(1), out, {.section = "nothing"}), Error);
  EXPECT_THAT(load_weights(folder(1)), SizeIs(s.ema.state().size()));
}

}  // namespace
}  // namespace xylem
