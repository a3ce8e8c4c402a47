// SPDX-License-Identifier: Apache-2.0
// The plan on real ranks: the same on all, obeyed over MPI, and by NCCL through the tuner. Several ranks on one GPU
// need XY_SHARE_GPU=1. Run alone (--gtest_filter=*Tuner*) the NCCL test also reads NCCL's own log and compares NCCL's
// estimates with the cost model; the differences go to $XY_TUNER_DIFFERENCES, or tuner_differences.json in the
// temporary folder.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/util/check.h"
#include "distributed/group/group.h"
#include "distributed/job/plan.h"
#include "distributed/plan/graph_search.h"
#include "distributed/plan/tuner.h"
#include "distributed/record/recorder.h"
#include "distributed/world/launcher.h"
#include "distributed/world/world.h"

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

// NCCL's estimates beside the model's for the same ranks, for a person: of each collective and size one row for each
// way that either of them has, and who takes which.
void write_differences(const std::string& dump, int ranks) {
  PlanOptions o;
  o.ranks = ranks;
  o.shared_gpu = share_gpu();
  if (const char* nvls = std::getenv("NCCL_NVLS_ENABLE")) o.nvls = std::string(nvls) != "0";
  CostModel model(search_fabric(detect_topology(), o), true);
  auto rounded = [](std::optional<double> us) {
    return us ? nlohmann::ordered_json(std::round(*us * 100) / 100) : nlohmann::ordered_json();
  };
  std::ostringstream out;
  std::istringstream lines(text_of(dump));
  int tables = 0, same_choice = 0, cells = 0, within = 0;
  for (std::string line; std::getline(lines, line);) {
    auto entry = nlohmann::json::parse(line);
    auto kind = parse_collective(entry["collective"]);
    std::pair<double, std::string> nccl_best{1e300, "none"}, our_best{1e300, "none"};
    std::vector<std::string> rows;
    for (int a = 0; a < 7; ++a)
      for (int p = 0; p < 3; ++p) {
        double told = entry["table"][size_t(a)][size_t(p)];
        std::optional<double> nccl = told < 0 ? std::nullopt : std::optional(told);
        auto ours = model.time_us(*kind, Algorithm(a), Protocol(p), entry["bytes"]);
        if (!nccl && !ours) continue;
        const std::string way = std::string(name_of(Algorithm(a))) + " " + name_of(Protocol(p));
        if (nccl && *nccl < nccl_best.first) nccl_best = {*nccl, way};
        if (nccl && ours && *ours < our_best.first) our_best = {*ours, way};
        nlohmann::ordered_json row = {{"way", way}, {"nccl_us", rounded(nccl)}, {"model_us", rounded(ours)}};
        if (nccl && ours && *nccl > 0) {
          row["ratio"] = std::round(*ours / *nccl * 1000) / 1000;
          ++cells;
          within += std::abs(*ours / *nccl - 1) <= 0.05;
        }
        rows.push_back(row.dump());
      }
    out << (tables++ ? ",\n" : "") << R"( {"collective": )" << entry["collective"] << R"(, "bytes": )" << entry["bytes"]
        << R"(, "nccl_takes": ")" << nccl_best.second << R"(", "model_takes": ")" << our_best.second
        << R"(", "agree": )" << (nccl_best.second == our_best.second ? "true" : "false") << ",\n  \"ways\": [";
    for (size_t i = 0; i < rows.size(); ++i) out << (i ? ",\n           " : "") << rows[i];
    out << "]}";
    same_choice += nccl_best.second == our_best.second;
  }
  const char* given = std::getenv("XY_TUNER_DIFFERENCES");
  std::ofstream(given ? given : testing::TempDir() + "tuner_differences.json")
      << "{\"ranks\": " << ranks << ", \"tables\": " << tables << ", \"choices_that_agree\": " << same_choice
      << ", \"estimates\": " << cells << ", \"estimates_within_5_percent\": " << within << ",\n\"tables_by_size\": [\n"
      << out.str() << "\n]}\n";
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
  if (alone) {  // more sizes and collectives for the table of differences, whatever NCCL takes
    for (int64_t each : {8, 8 << 10, 128 << 10, 2 << 20}) {
      const int64_t count = each * group.size();
      Tensor whole = full({count}, 1.f, f32, device), part = full({each}, 1.f, f32, device);
      group.all_reduce(whole).wait();
      group.all_gather(whole, part).wait();
      group.reduce_scatter(part, whole).wait();
      group.broadcast(whole, 0).wait();
    }
  }
  if (alone && world.rank() == 0) write_differences(dump, group.size());
  world.barrier();
  for (const std::string& file : {log, dump}) std::filesystem::remove(file);
}

}  // namespace
}  // namespace xylem
