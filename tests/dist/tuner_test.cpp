// SPDX-License-Identifier: Apache-2.0
// The plan on real ranks: the same on all, obeyed over MPI, and by NCCL through the tuner. Several ranks on one GPU
// need XY_SHARE_GPU=1. Run alone (--gtest_filter=*Tuner*) the NCCL test also reads NCCL's own log and compares NCCL's
// estimates with the cost model; the differences go to $XY_TUNER_DIFFERENCES, or tuner_differences.json in the
// temporary folder.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/util/check.h"
#include "distributed/group/group.h"
#include "distributed/launch/launcher.h"
#include "distributed/launch/world.h"
#include "distributed/plan/graph_search.h"
#include "distributed/plan/share.h"
#include "distributed/plan/tuner.h"
#include "distributed/watchdog/recorder.h"

namespace xylem {
namespace {

Plan all_reduce_by(Algorithm a, int ranks) {
  Plan plan;
  plan.ranks = ranks;
  plan.entries.push_back({.kind = CollectiveKind::all_reduce, .algorithm = a, .basis = Basis::pinned});
  return plan;
}

TEST(SharedPlan, IsRankZerosEverywhere) {
  Group world = Group::world();
  Plan mine = all_reduce_by(world.rank() == 0 ? Algorithm::tree : Algorithm::ring, 4);
  Plan shared = share_plan(mine, world);
  EXPECT_EQ(shared.entries[0].algorithm, Algorithm::tree);
  for (const std::string& hash : world.gather_strings(shared.hash())) EXPECT_EQ(hash, shared.hash());
}

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// NCCL's table beside the model's times for the same ranks, as one JSON list.
void write_differences(const std::string& dump, int ranks) {
  Topology one;
  one.gpus.resize(1);
  one.gpus[0].name = "NVIDIA H200";
  one.pairs.assign(1, std::vector<DevicePair>(1));
  PlanOptions o;
  o.ranks = ranks;
  o.shared_gpu = share_gpu();
  CostModel model(search_fabric(one, o), true);
  auto differences = nlohmann::ordered_json::array();
  std::istringstream lines(text_of(dump));
  for (std::string line; std::getline(lines, line);) {
    auto entry = nlohmann::json::parse(line);
    auto kind = parse_collective(entry["collective"]);
    for (int a = 0; a < 7; ++a)
      for (int p = 0; p < 3; ++p) {
        double nccl = entry["table"][size_t(a)][size_t(p)];
        auto ours = model.time_us(*kind, Algorithm(a), Protocol(p), entry["bytes"]);
        if (nccl < 0 && !ours) continue;
        differences.push_back({{"collective", entry["collective"]},
                               {"ranks", entry["ranks"]},
                               {"bytes", entry["bytes"]},
                               {"algorithm", name_of(Algorithm(a))},
                               {"protocol", name_of(Protocol(p))},
                               {"nccl_us", nccl < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(nccl)},
                               {"model_us", ours ? nlohmann::ordered_json(*ours) : nlohmann::ordered_json()}});
      }
  }
  const char* given = std::getenv("XY_TUNER_DIFFERENCES");
  std::ofstream(given ? given : testing::TempDir() + "tuner_differences.json") << differences.dump(1) << '\n';
}

TEST(TunerCuda, ForcesRingAndThenTree) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank: nothing travels";
  const Device device = Device::cuda(xylem::world().local_rank % cuda_device_count());
  const std::string folder = testing::TempDir(), id = std::to_string(getpid());
  const std::string log = folder + "nccl_tuner_" + id + ".log", dump = folder + "nccl_table_" + id + ".jsonl";
  // NCCL and the tuner read these once, at the first communicator of the process.
  const bool alone = !tuner::asked() && !std::getenv("NCCL_DEBUG");
  if (alone) {
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_SUBSYS", "TUNING,COLL", 1);
    setenv("NCCL_DEBUG_FILE", log.c_str(), 1);
    setenv("XY_TUNER_DUMP", dump.c_str(), 1);
  }
  Group group = world.split(0, world.rank(), "tuned");
  const float sum = float(group.size() * (group.size() + 1) / 2);
  for (Algorithm algorithm : {Algorithm::ring, Algorithm::tree}) {
    const std::string name = name_of(algorithm);
    tuner::set_plan(group.name(), all_reduce_by(algorithm, group.size()));
    for (int64_t count : {1024, 1 << 20}) {
      Tensor t = full({count}, group.rank() + 1, f32, device);
      group.all_reduce(t).wait();
      auto values = t.to_vector<float>();
      EXPECT_EQ(values[0], sum);
      EXPECT_EQ(values.back(), sum);
      ASSERT_TRUE(tuner::asked()) << testing::PrintToString(tuner::conflicts());
      EXPECT_THAT(tuner::last_choice(group.name()), testing::StartsWith(name + " "));
      EXPECT_THAT(recorder::recent().back().algorithm, testing::StartsWith(name + " "));
      if (alone && group.rank() == 0) {  // the only rank that NCCL lets tell
        std::string upper = name == "ring" ? "RING" : "TREE";
        EXPECT_THAT(text_of(log),
                    testing::HasSubstr("AllReduce: " + std::to_string(4 * count) + " Bytes -> Algo " + upper));
      }
    }
  }
  tuner::clear();
  if (alone && world.rank() == 0) write_differences(dump, group.size());
  world.barrier();
  for (const std::string& file : {log, dump}) std::filesystem::remove(file);
}

}  // namespace
}  // namespace xylem
