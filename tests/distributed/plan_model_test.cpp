// SPDX-License-Identifier: Apache-2.0
// The cost model and the graph search against published searches, bandwidths and choices.
#include <gmock/gmock.h>

#include "distributed/plan/graph_search.h"
#include "tests/distributed/plan_machines.h"

namespace xylem {
namespace {

using test::make_cluster;
using test::make_host;

constexpr auto kAllReduce = CollectiveKind::all_reduce;
constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

Fabric fabric_of(const Topology& t, int ranks = 0, bool nvls = true) {
  PlanOptions o;
  o.ranks = ranks;
  o.nvls = nvls;
  return search_fabric(t, o);
}

// What NCCL's own search found: dumps of its graphs and its log.
TEST(GraphSearch, FindsTheChannelsThatNcclFinds) {
  struct Row {
    const char* machine;
    Topology topology;
    int channels;
    double gbps;
  };
  test::Machine dgx2 = test::dgx_a100();
  dgx2.gpu = "Tesla V100-SXM3-32GB", dgx2.sm = 70, dgx2.gpus = 16, dgx2.nvlinks = 6;
  test::Machine h100_4 = test::a100_mesh_4();
  h100_4.gpu = "NVIDIA H100 80GB HBM3", h100_4.sm = 90, h100_4.nvlinks = 6;
  for (const Row& r :
       {Row{"HGX H200 (graph dump)", make_host(test::hgx_h200()), 12, 30},
        Row{"4x A100, NV4 to each (Perlmutter's graph dump)", make_host(test::a100_mesh_4()), 12, 20},
        Row{"DGX A100", make_host(test::dgx_a100()), 12, 20},
        Row{"HGX B200: 16 rings", make_host(test::hgx_b200()), 16, 45},
        Row{"DGX-1V: all six links of each GPU", test::dgx1v(), 6, 20},
        Row{"DGX-2: all six links", make_host(dgx2), 6, 20}, Row{"4x H100, NV6 to each", make_host(h100_4), 12, 30}}) {
    Fabric f = fabric_of(r.topology);
    EXPECT_EQ(f.unknown, "") << r.machine;
    EXPECT_EQ(f.ring.count, r.channels) << r.machine;
    EXPECT_DOUBLE_EQ(f.ring.intra_gbps, r.gbps) << r.machine;
    EXPECT_EQ(f.tree.count, r.channels) << r.machine;
    EXPECT_TRUE(f.ring.nvlink) << r.machine;
  }
  Fabric h200 = fabric_of(make_host(test::hgx_h200()));
  EXPECT_EQ(h200.nvls.count, 8);
  EXPECT_EQ(h200.nvls.intra_gbps, 40);
  EXPECT_EQ(h200.nvls.inter_gbps, 60);
}

// Azure's graph for four A100s on PCIe Gen4, each on a NUMA node of its own: two rings of 12, in opposite directions.
TEST(GraphSearch, GoesRoundPcieInBothDirections) {
  test::Machine m = test::pcie_box("NVIDIA A100 80GB PCIe", 80, 4, 4);
  m.cpu = "AuthenticAMD";
  Topology t = make_host(m, [](int, int, DevicePair& p) { p.path = PathClass::sys; });
  for (auto& g : t.gpus) g.numa = g.index;
  Fabric f = fabric_of(t);
  ASSERT_EQ(f.ring.count, 2);
  EXPECT_EQ(f.ring.intra_gbps, 12);
  EXPECT_FALSE(f.ring.nvlink);
  EXPECT_EQ(f.nvls.count, 0);
  EXPECT_FALSE(f.ll128);
  // No directed link between two sockets carries both.
  std::vector<std::pair<int, int>> hops;
  for (const auto& ring : f.ring.orders)
    for (size_t i = 0; i < 4; ++i) hops.emplace_back(ring[i], ring[(i + 1) % 4]);
  std::sort(hops.begin(), hops.end());
  EXPECT_EQ(std::unique(hops.begin(), hops.end()), hops.end());
}

TEST(GraphSearch, EveryRingVisitsEveryGpuOnceWithinTheLinks) {
  Topology t = test::dgx1v();
  Fabric f = fabric_of(t);
  std::vector<std::vector<double>> used(8, std::vector<double>(8));
  for (const auto& ring : f.ring.orders) {
    EXPECT_THAT(ring, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    for (size_t i = 0; i < 8; ++i) used[size_t(ring[i])][size_t(ring[(i + 1) % 8])] += f.ring.intra_gbps;
  }
  for (size_t i = 0; i < 8; ++i)
    for (size_t j = 0; j < 8; ++j) EXPECT_LE(used[i][j], 20 * t.pairs[i][j].nvlinks) << i << " to " << j;
}

TEST(GraphSearch, SaysWhatItDoesNotKnow) {
  Topology t = make_host(test::hgx_h200(), [](int i, int j, DevicePair& p) {
    if (i + j == 3) p.path = PathClass::unknown;
  });
  EXPECT_THAT(fabric_of(t).unknown, testing::HasSubstr("is not known"));

  test::Machine nics = test::dgx_h100();
  nics.nic_gbps = 0;
  Topology two = make_cluster(make_host(nics), 2);
  EXPECT_THAT(fabric_of(two).unknown, testing::HasSubstr("speed of the NICs"));
  PlanOptions o;
  o.nic_gbps = 50;
  Fabric f = search_fabric(two, o);
  EXPECT_EQ(f.unknown, "");
  EXPECT_EQ(f.ring.count, 8);
  EXPECT_THAT(f.assumptions, testing::Contains(testing::HasSubstr("8 of 50 GB/s")));

  EXPECT_THAT(fabric_of(make_host(test::hgx_h200()), 9).unknown, testing::HasSubstr("9 ranks"));

  test::Machine nameless = test::hgx_h200();
  nameless.gpu = "", nameless.sm = 0;
  t = make_host(nameless);
  for (auto& g : t.gpus) g.sm.reset();
  f = fabric_of(t);
  EXPECT_EQ(f.ring.count, 12);
  EXPECT_THAT(f.assumptions, testing::Contains(testing::HasSubstr("by their 18 NVLinks")));
}

// Published bus bandwidths of all_reduce at large sizes (GB/s) and who won, with their source. A range is met when the
// prediction lies in it; a number within 5 %.
TEST(CostModel, MeetsPublishedBandwidthsAndWinners) {
  struct Row {
    const char* source;
    Topology topology;
    int ranks;
    bool nvls;
    double bytes, low, high;
    Algorithm winner;
  };
  test::Machine h800 = test::hgx_h200();
  h800.gpu = "NVIDIA H800", h800.nvlinks = 8;
  test::Machine four = test::a100_mesh_4();
  four.gpu = "NVIDIA H20", four.sm = 90, four.nvlinks = 6;
  test::Machine h200x2 = test::dgx_h100();
  test::Machine geforce = test::pcie_box("NVIDIA GeForce RTX 4090", 89, 8, 4);
  geforce.cpu_model = 85;
  test::Machine pairs = test::pcie_box("NVIDIA A100 80GB PCIe", 80, 3, 4);
  auto bridge = [](int i, int j, DevicePair& p) {
    if (i < 2 && j < 2) p.path = PathClass::nvlink, p.nvlinks = 12;
  };
  auto two_switches = [](int i, int j, DevicePair& p) { p.path = i / 4 == j / 4 ? PathClass::pxb : PathClass::sys; };
  const auto ring = Algorithm::ring, nvls = Algorithm::nvls;
  const Topology h100 = make_host(test::dgx_h100());
  for (const Row& r : {
           Row{"8x H100, NVLS, nccl-tests#212, nccl#1455", h100, 8, true, 16 * kGiB, 480, 480, nvls},
           Row{"7x H100, NVLS, nccl#1455", h100, 7, true, 16 * kGiB, 460, 460, nvls},
           Row{"6x H100, NVLS, nccl#1455", h100, 6, true, 16 * kGiB, 440, 440, nvls},
           Row{"5x H100, NVLS, nccl#1455", h100, 5, true, 16 * kGiB, 420, 420, nvls},
           Row{"4x H100, NVLS, nccl#1455", h100, 4, true, 16 * kGiB, 370, 370, nvls},
           Row{"8x H100, NVLS off, ring", h100, 8, false, 16 * kGiB, 363, 370, ring},
           Row{"4x H100, NVLS off, ring", h100, 4, false, 16 * kGiB, 363, 370, ring},
           Row{"2x H100, NVLS off, ring", h100, 2, false, 16 * kGiB, 363, 370, ring},
           Row{"2x8 H200, nccl-tests#256, 1 GiB", make_cluster(make_host(h200x2), 2), 16, true, kGiB, 458.65, 458.65,
               Algorithm::nvls_tree},
           Row{"2x8 H200, nccl-tests#256, 3 GiB", make_cluster(make_host(h200x2), 2), 16, true, 3 * kGiB, 483.8, 483.8,
               Algorithm::nvls_tree},
           Row{"2x8 H200, nccl-tests#256, 9.7 GiB", make_cluster(make_host(h200x2), 2), 16, true, 9.7 * kGiB, 488.8,
               488.8, Algorithm::nvls_tree},
           Row{"8x A100, nccl-tests#228, nccl#1712", make_host(test::dgx_a100()), 8, true, kGiB, 220, 240, ring},
           Row{"2x A100 PCIe with bridges, nccl-tests#178", make_host(pairs, bridge), 2, true, kGiB, 208, 208, ring},
           Row{"3x A100 PCIe, across the bridged pair, nccl-tests#178", make_host(pairs, bridge), 3, true, kGiB, 20, 20,
               ring},
           Row{"4x H20, 1 GiB", make_host(four), 4, true, kGiB, 351, 351, ring},
           Row{"8x H800, NVLS, nccl#1374", make_host(h800), 8, true, 16 * kGiB, 215, 215, nvls},
           Row{"8x B200, nccl#1807", make_host(test::hgx_b200()), 8, true, 16 * kGiB, 830, 830, nvls},
           Row{"8x RTX 4090, two PCIe switches, nccl#1530, nccl-tests#307", make_host(geforce, two_switches), 8, true,
               kGiB, 10, 20, ring},
       }) {
    CostModel model(fabric_of(r.topology, r.ranks, r.nvls));
    auto best = model.ranked(kAllReduce, r.bytes);
    ASSERT_FALSE(best.empty()) << r.source;
    double bus = bus_bandwidth(kAllReduce, r.ranks, r.bytes, best[0].time_us);
    EXPECT_EQ(name_of(best[0].algorithm), std::string(name_of(r.winner))) << r.source;
    EXPECT_GE(bus, 0.95 * r.low) << r.source;
    EXPECT_LE(bus, 1.05 * r.high) << r.source;
  }
}

// To the letter NCCL expects 473 GB/s of NVLS at 1 GiB on eight H200 and knows its latencies.
TEST(CostModel, RestatesNccl) {
  Fabric f = fabric_of(make_host(test::hgx_h200()));
  CostModel exact(f, true);
  auto latency = [&](Algorithm a, Protocol p) { return exact.cost(kAllReduce, a, p).latency_us(); };
  auto gbps = [&](Algorithm a, Protocol p) { return exact.cost(kAllReduce, a, p).gbps; };
  EXPECT_NEAR(latency(Algorithm::ring, Protocol::ll), 15.0, 0.01);
  EXPECT_NEAR(gbps(Algorithm::ring, Protocol::ll), 80.6, 0.1);
  EXPECT_NEAR(latency(Algorithm::ring, Protocol::ll128), 40.6, 0.01);
  EXPECT_NEAR(gbps(Algorithm::ring, Protocol::ll128), 189, 0.5);
  EXPECT_NEAR(latency(Algorithm::ring, Protocol::simple), 56, 0.01);
  EXPECT_NEAR(gbps(Algorithm::ring, Protocol::simple), 206, 0.5);
  EXPECT_NEAR(latency(Algorithm::tree, Protocol::ll), 15.2, 0.01);
  EXPECT_NEAR(gbps(Algorithm::tree, Protocol::ll), 43.6, 0.1);
  EXPECT_NEAR(latency(Algorithm::nvls, Protocol::simple), 25, 0.01);
  EXPECT_NEAR(gbps(Algorithm::nvls, Protocol::simple), 272, 0.5);
  EXPECT_NEAR(bus_bandwidth(kAllReduce, 8, kGiB, *exact.time_us(kAllReduce, Algorithm::nvls, Protocol::simple, kGiB)),
              473, 1);

  CostModel dgx(fabric_of(make_cluster(make_host(test::dgx_h100()), 2)), true);
  EXPECT_NEAR(dgx.cost(kAllReduce, Algorithm::tree, Protocol::ll).latency_us(), 25.2, 0.01);
  EXPECT_NEAR(dgx.cost(kAllReduce, Algorithm::tree, Protocol::ll).gbps, 19.5, 0.01);
  EXPECT_NEAR(dgx.cost(kAllReduce, Algorithm::tree, Protocol::ll128).latency_us(), 48.5, 0.01);
  EXPECT_NEAR(dgx.cost(kAllReduce, Algorithm::tree, Protocol::ll128).gbps, 147, 0.5);
  EXPECT_NEAR(dgx.cost(kAllReduce, Algorithm::nvls_tree, Protocol::simple).latency_us(), 66.8, 0.01);
  EXPECT_NEAR(dgx.cost(kAllReduce, Algorithm::nvls_tree, Protocol::simple).gbps, 246, 0.5);
  for (auto [nodes, ring, tree] : {std::tuple{4, 79., 35.}, {8, 156., 45.}, {16, 312., 55.}}) {
    CostModel m(fabric_of(make_cluster(make_host(test::dgx_h100()), nodes)));
    EXPECT_NEAR(m.cost(kAllReduce, Algorithm::ring, Protocol::ll).latency_us(), ring, 1) << nodes;
    EXPECT_NEAR(m.cost(kAllReduce, Algorithm::tree, Protocol::ll).latency_us(), tree, 1) << nodes;
  }
  CostModel a100(fabric_of(make_cluster(make_host(test::dgx_a100()), 2)));
  EXPECT_NEAR(a100.cost(kAllReduce, Algorithm::ring, Protocol::ll).latency_us(), 68, 0.1);
  EXPECT_NEAR(a100.cost(kAllReduce, Algorithm::tree, Protocol::ll).latency_us(), 25.2, 0.1);
}

// Eight GPUs on PCIe at 10 GB/s: a tree never wins, LL128 is not to be had.
TEST(CostModel, PcieHasNoUseForATree) {
  Fabric f;
  f.ranks = 8;
  f.generation = GpuGeneration::ampere;
  f.ring = {.count = 1, .intra_gbps = 10};
  f.tree = f.ring;
  CostModel m(f);
  EXPECT_NEAR(m.cost(kAllReduce, Algorithm::ring, Protocol::ll).latency_us(), 20.6, 0.01);
  EXPECT_NEAR(m.cost(kAllReduce, Algorithm::ring, Protocol::ll).gbps, 2.86, 0.01);
  EXPECT_NEAR(m.cost(kAllReduce, Algorithm::ring, Protocol::simple).latency_us(), 88.2, 0.01);
  EXPECT_NEAR(m.cost(kAllReduce, Algorithm::ring, Protocol::simple).gbps, 5.71, 0.01);
  EXPECT_FALSE(m.time_us(kAllReduce, Algorithm::ring, Protocol::ll128, 1e6));
  for (double bytes = 8; bytes < 1e10; bytes *= 2)
    EXPECT_EQ(m.ranked(kAllReduce, bytes)[0].algorithm, Algorithm::ring) << bytes;
}

TEST(CostModel, OnlyAllReduceHasATree) {
  CostModel m(fabric_of(make_host(test::hgx_h200())));
  for (int k = 0; k < 4; ++k)
    for (int p = 0; p < 3; ++p)
      EXPECT_FALSE(m.time_us(CollectiveKind(k), Algorithm::tree, Protocol(p), kMiB)) << k << " " << p;
}

}  // namespace
}  // namespace xylem
