// SPDX-License-Identifier: Apache-2.0
// The plan: what it promises of its entries, how options and measurements change it, and, for every machine among the
// fixtures, the whole text a user reads (fixtures/plans; XY_UPDATE_PLANS=1 writes them anew).
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/util/check.h"
#include "distributed/job/plan.h"
#include "distributed/plan/measured.h"
#include "tests/distributed/plan_machines.h"
#include "tests/support.h"

namespace xylem {
namespace {

using test::make_cluster;
using test::make_host;

constexpr auto kAllReduce = CollectiveKind::all_reduce;

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Plan, CoversEverySizeOnce) {
  for (const Topology& t : {make_host(test::hgx_h200()), make_cluster(make_host(test::dgx_a100()), 4), test::dgx1v()}) {
    Plan plan = make_plan(t);
    for (int k = 0; k < 5; ++k) {
      int64_t at = 0;
      for (const PlanEntry& e : plan.entries) {
        if (int(e.kind) != k) continue;
        EXPECT_EQ(e.from_bytes, at);
        EXPECT_LT(e.from_bytes, e.to_bytes);
        EXPECT_GT(e.time_us, 0);
        EXPECT_FALSE(e.reason.empty());
        at = e.to_bytes;
      }
      EXPECT_EQ(at, INT64_MAX) << k;
    }
    for (int64_t bytes : {int64_t(0), int64_t(8), int64_t(1) << 20, int64_t(1) << 40})
      EXPECT_NE(plan.find(kAllReduce, bytes), nullptr) << bytes;
  }
}

// The model's own table of choices (sizes where one takes over from the other, in bytes, to a power of two).
TEST(Plan, ChangesWhereTheModelSays) {
  auto choices = [](const Topology& t, bool nvls = true) {
    PlanOptions o;
    o.nvls = nvls;
    std::string text;
    for (const PlanEntry& e : make_plan(t, o).entries)
      if (e.kind == kAllReduce) {
        text += std::string(text.empty() ? "" : ", ") + name_of(e.algorithm) + " " + name_of(*e.protocol);
        if (e.to_bytes != INT64_MAX) text += " to 2^" + std::to_string(int(std::ceil(std::log2(e.to_bytes))));
      }
    return text;
  };
  EXPECT_EQ(choices(make_host(test::hgx_h200())), "ring ll to 2^21, nvls simple");
  EXPECT_EQ(choices(make_host(test::hgx_h200()), false), "ring ll to 2^22, ring ll128 to 2^26, ring simple");
  EXPECT_EQ(choices(make_host(test::dgx_a100())), "ring ll to 2^22, ring ll128 to 2^25, ring simple");
  EXPECT_EQ(choices(make_cluster(make_host(test::dgx_h100()), 2)),
            "tree ll to 2^18, tree ll128 to 2^22, nvls_tree simple");
}

TEST(Plan, AReasonNamesTheFormulaAndTheNextBest) {
  Plan plan = make_plan(make_host(test::hgx_h200()));
  const PlanEntry* small = plan.find(kAllReduce, 1024);
  EXPECT_THAT(small->reason, testing::HasSubstr("6.6 us + 14 steps x 0.6 us, 80.57 GB/s"));
  EXPECT_THAT(small->reason, testing::HasSubstr("next tree ll +"));
  EXPECT_FALSE(small->clear);  // the tree is as fast there
  EXPECT_TRUE(plan.find(kAllReduce, 1 << 28)->clear);
  EXPECT_EQ(small->basis, Basis::predicted);
}

// Where a reason says that the next choice becomes faster, it does: the tree's corrections included.
TEST(Plan, CrossingsAreWhereTheChoiceChanges) {
  PlanOptions options;
  options.nic_gbps = 50;
  Plan plan = make_plan(make_cluster(make_host(test::hgx_h200()), 2), options);
  int seen = 0;
  for (size_t i = 0; i + 1 < plan.entries.size(); ++i) {
    const PlanEntry &e = plan.entries[i], &next = plan.entries[i + 1];
    if (e.kind != next.kind) continue;
    std::string name = std::string("next ") + name_of(next.algorithm) + " " + name_of(*next.protocol) + " ";
    size_t at = e.reason.find(name), words = e.reason.find("better above ");
    if (at == std::string::npos || words == std::string::npos || e.reason.find(';', at) < words) continue;
    char expected[32];
    std::snprintf(expected, sizeof expected, "%.3g ", double(e.to_bytes) / (e.to_bytes < 1 << 20 ? 1024 : 1 << 20));
    EXPECT_THAT(e.reason, testing::HasSubstr("better above " + std::string(expected))) << e.reason;
    ++seen;
  }
  EXPECT_GE(seen, 3);
}

TEST(Plan, PinsRingOrTree) {
  Topology t = make_host(test::hgx_h200());
  for (auto [name, algorithm] : {std::pair{"ring", Algorithm::ring}, {"tree", Algorithm::tree}}) {
    Plan plan = make_plan(t, {.algorithm = name, .nic_gbps = {}});
    for (const PlanEntry& e : plan.entries) {
      EXPECT_EQ(e.algorithm, e.kind == kAllReduce ? algorithm : Algorithm::ring);
      EXPECT_EQ(e.basis, Basis::pinned);
    }
  }
  Plan equal = make_plan(t, {.deterministic = true, .nic_gbps = {}});
  for (const PlanEntry& e : equal.entries) {
    EXPECT_EQ(e.algorithm, Algorithm::ring);
    EXPECT_EQ(e.protocol, Protocol::simple);
    EXPECT_EQ(e.channels, 12);
    EXPECT_EQ(e.to_bytes, INT64_MAX);  // one way for every size
  }
  EXPECT_THROW(make_plan(t, {.algorithm = "star", .nic_gbps = {}}), Error);
}

TEST(Plan, AMeasurementOverrulesTheModel) {
  Topology t = make_host(test::hgx_h200());
  MeasuredTable table{t.fingerprint(), "2.28.9", "580", 8, 1, {}};
  // The tree wins in the middle, against every prediction.
  for (int64_t bytes : {1 << 10, 1 << 16, 1 << 24})
    for (auto [a, us] : {std::pair{Algorithm::ring, 20.0}, {Algorithm::tree, bytes == 1 << 16 ? 10.0 : 40.0}})
      table.rows.push_back({kAllReduce, a, bytes, us * double(bytes) / 1024});
  PlanOptions o;
  o.measured = &table;
  Plan plan = make_plan(t, o);
  const PlanEntry* middle = plan.find(kAllReduce, 1 << 16);
  EXPECT_EQ(middle->algorithm, Algorithm::tree);
  EXPECT_EQ(middle->basis, Basis::measured);
  EXPECT_FALSE(middle->protocol);  // the library knows best
  EXPECT_THAT(middle->reason, testing::StartsWith("measured here; ring +"));
  EXPECT_EQ(plan.find(kAllReduce, 1 << 10)->algorithm, Algorithm::ring);
  EXPECT_EQ(plan.find(kAllReduce, 1 << 10)->basis, Basis::measured);
  EXPECT_EQ(plan.find(kAllReduce, 1 << 28)->basis, Basis::predicted);  // beyond what was measured
  EXPECT_EQ(plan.find(CollectiveKind::all_gather, 1 << 16)->basis, Basis::predicted);
  // Half way between 64 KiB and 16 MiB on the logarithm both take as long as the mean of the logarithms.
  EXPECT_NEAR(*table.time_us(kAllReduce, Algorithm::ring, 1 << 20), 20.0 * 1024, 1);
}

TEST(Plan, MeasurementsAreKeptByMachineAndVersion) {
  Scratch folder;
  const char* before = std::getenv("XDG_CACHE_HOME");
  std::string saved = before ? before : "";
  setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  Topology t = make_host(test::hgx_h200());
  t.hosts[0].nccl = "2.28.9", t.hosts[0].driver = "580.1";
  EXPECT_FALSE(load_measured(t, 8, 1));
  MeasuredTable table{t.fingerprint(), "2.28.9", "580.1", 8, 1, {{kAllReduce, Algorithm::ring, 1024, 17.5}}};
  std::string file = save_measured(table, t);
  auto again = load_measured(t, 8, 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->to_json(), table.to_json());
  EXPECT_FALSE(load_measured(t, 4, 1));
  t.hosts[0].nccl = "2.30";
  EXPECT_FALSE(load_measured(t, 8, 1));
  t.hosts[0].nccl = "2.28.9";
  std::ofstream(file) << "{";
  EXPECT_THROW(load_measured(t, 8, 1), Error);
  before ? setenv("XDG_CACHE_HOME", saved.c_str(), 1) : unsetenv("XDG_CACHE_HOME");
}

TEST(Plan, TravelsAsJson) {
  Plan plan = make_plan(make_host(test::hgx_h200()));
  Plan again = Plan::from_json(plan.to_json());
  EXPECT_EQ(again.hash(), plan.hash());
  EXPECT_EQ(again.explain(), plan.explain());
  again.entries[0].channels = 3;
  EXPECT_NE(again.hash(), plan.hash());
  auto j = nlohmann::json::parse(plan.to_json());
  EXPECT_EQ(j["all_reduce"][0]["algorithm"], "ring");
  EXPECT_TRUE(j["all_reduce"].back()["to_bytes"].is_null());
  EXPECT_THROW(Plan::from_json("{}"), Error);
  EXPECT_THROW(Plan::from_json("[1"), Error);
  EXPECT_EQ(share_plan(plan, Group()).hash(), plan.hash());
}

TEST(Plan, WithoutGpusItSpeaksOfMessages) {
  Topology t;
  t.hosts.resize(1);
  Plan plan = make_plan(t, {.ranks = 16, .nic_gbps = {}});
  EXPECT_EQ(plan.find(kAllReduce, 64)->algorithm, Algorithm::tree);
  EXPECT_EQ(plan.find(kAllReduce, 1 << 28)->algorithm, Algorithm::ring);
  EXPECT_TRUE(make_plan(t).entries.empty());  // one process
}

TEST(Plan, SharedGpuRanksAreNodes) {
  test::Machine one = test::hgx_h200();
  one.gpus = 1;
  Plan plan = make_plan(make_host(one), {.ranks = 4, .nic_gbps = {}, .shared_gpu = true});
  EXPECT_EQ(plan.nodes, 4);
  EXPECT_EQ(plan.find(kAllReduce, 64)->algorithm, Algorithm::tree);
  EXPECT_THAT(plan.notes, testing::Contains(testing::HasSubstr("mean nothing")));
}

struct Golden {
  const char* machine;
  int nodes = 1;
  double nic_gbps = 0;
};

TEST(Plan, ReadsAsBeforeForEveryMachine) {
  const std::filesystem::path fixtures = XY_FIXTURES;
  std::vector<Golden> cases;
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(fixtures / "topologies"))
    if (file.path().extension() == ".json") names.push_back(file.path().stem());
  std::sort(names.begin(), names.end());
  ASSERT_GE(names.size(), 30u);
  for (const std::string& n : names) cases.push_back({n.c_str()});
  for (const Golden& several :
       {Golden{"dgx_h100_8", 2, 50}, {"dgx_h100_8", 16, 50}, {"dgx_a100_8", 4, 25}, {"dgx_h100_8", 2}})
    cases.push_back(several);
  for (const Golden& c : cases) {
    Topology t = load_topology(fixtures / "topologies" / (std::string(c.machine) + ".json"));
    if (c.nodes > 1) t = replicate(t, c.nodes);
    PlanOptions o;
    if (c.nic_gbps > 0) o.nic_gbps = c.nic_gbps;
    std::string text = make_plan(t, o).explain();
    std::string name = c.machine;
    if (c.nodes > 1) name += "_x" + std::to_string(c.nodes) + (o.nic_gbps ? "" : "_unknown_nics");
    auto golden = fixtures / "plans" / (name + ".txt");
    if (std::getenv("XY_UPDATE_PLANS")) std::ofstream(golden) << text;
    EXPECT_EQ(text, read_text(golden)) << golden;
  }
}

}  // namespace
}  // namespace xylem
