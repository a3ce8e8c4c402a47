// SPDX-License-Identifier: Apache-2.0
// Findings: each with a machine or surroundings that have the fault, and with ones that have not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/util/check.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/json.h"

namespace xylem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Topology fixture(const std::string& name) {
  return load_topology(std::string(XY_FIXTURES) + "/topologies/" + name + ".json");
}

std::vector<std::string> codes(const std::vector<Finding>& findings, Severity least = Severity::info) {
  std::vector<std::string> list;
  for (const Finding& f : findings)
    if (f.severity >= least) list.push_back(f.code);
  std::sort(list.begin(), list.end());
  return list;
}

const Finding* find(const std::vector<Finding>& findings, const std::string& code) {
  for (const Finding& f : findings)
    if (f.code == code) return &f;
  return nullptr;
}

bool has(const Topology& t, const std::string& code) { return find(find_topology_problems(t), code) != nullptr; }

// ---- the machines ---------------------------------------------------------------------------------------------------

TEST(FindingsFixtures, SayWhatIsWrongAndNothingElse) {
  using Codes = std::vector<std::string>;
  const std::map<std::string, Codes> warnings{
      {"a100_4_nv4_pxb", {}},
      {"a100_8_ten_nics", {}},
      {"a100_pcie_2_sys", {}},
      {"a100_pcie_pairs_8", {}},
      {"a100_pcie_pairs_8_cgroup", {"CPUS_FAR"}},
      {"a6000_trio_nv4_pair", {}},
      {"aws_g5_a10g_8", {"VM_TREE_FLAT"}},
      {"aws_p4d_a100_8", {}},
      {"azure_ncv4_a100_4", {}},
      {"azure_ndv2_v100_8", {}},
      {"azure_ndv4_a100_8", {}},
      {"b200_8_one_gpu_no_nvlink", {"NVLINK_GPU_ALONE"}},
      {"dgx1v_inactive_links", {"NVLINK_INACTIVE"}},
      {"dgx1v_partial_nvlink", {}},
      {"dgx1v_v100_8", {}},
      {"dgx2_v100_16", {}},
      {"dgx_a100_8", {}},
      {"dgx_h100_8", {}},
      {"gb200_tray_4", {}},
      {"gb300_2tray_healthy", {}},
      {"gb300_2tray_one_gpu_no_nvlink", {"NVLINK_GPU_ALONE"}},
      {"h100_4_nv6", {}},
      {"h100_vm_8", {}},
      {"h100_vm_8_bogus_bridges", {"PCIE_BOGUS_BRIDGE"}},
      {"h200_vm_1", {}},
      {"h200_vm_flat_8", {"VM_TREE_FLAT"}},
      {"hgx_b200_8", {}},
      {"hgx_h200_8", {}},
      {"perlmutter_a100_4_nv4", {}},
      {"rtx3090_2_bad_bridge", {"NVLINK_COUNT"}},
      {"rtx3090_4_degraded_slots", {"PCIE_GENERATION", "PCIE_GENERATION", "PCIE_WIDTH", "PCIE_WIDTH"}},
      {"rtx3090_4_pairs", {}},
      {"rtx4090_8_all_sys", {}},
      {"rtx4090_8_pcie_switches", {}},
      {"rtx5090_2_p2p_gns", {}},
  };
  for (auto& [name, expected] : warnings)
    EXPECT_EQ(codes(find_problems(fixture(name), {}), Severity::warning), expected) << name;
}

TEST(FindingsFixtures, NotesOfHealthyMachines) {
  auto notes = [](const char* name) { return codes(find_problems(fixture(name), {})); };
  EXPECT_THAT(notes("dgx_h100_8"), ElementsAre());
  EXPECT_THAT(notes("a100_pcie_pairs_8"), ElementsAre("NVLINK_ISLANDS"));
  EXPECT_THAT(notes("a6000_trio_nv4_pair"), ElementsAre("NVLINK_ISLANDS"));
  EXPECT_THAT(notes("h100_vm_8"), ElementsAre("NIC_ORDER"));
  EXPECT_THAT(notes("rtx4090_8_all_sys"), ElementsAre("NIC_FAR", "PATHS_UNIFORM"));
  EXPECT_THAT(notes("a100_pcie_2_sys"), ElementsAre("PATHS_UNIFORM"));
  EXPECT_THAT(notes("rtx5090_2_p2p_gns"), ElementsAre("P2P_UNSUPPORTED"));
  EXPECT_THAT(notes("azure_ncv4_a100_4"), ElementsAre("NVLINK_TO_ITSELF", "PCIE_NOT_TOLD"));
}

TEST(FindingsFixtures, NumaNodeNotTold) {
  Topology t = fixture("hgx_h200_8");
  EXPECT_FALSE(has(t, "NUMA_UNKNOWN"));
  t.gpus[3].numa.reset();
  auto findings = find_topology_problems(t);
  ASSERT_TRUE(find(findings, "NUMA_UNKNOWN"));
  EXPECT_THAT(find(findings, "NUMA_UNKNOWN")->subjects, ElementsAre("GPU3"));
}

TEST(FindingsFixtures, WordsThatAPersonCanActOn) {
  auto one = [](const char* name, const char* code) {
    auto findings = find_problems(fixture(name), {});
    const Finding* f = find(findings, code);
    return f ? *f : Finding{};
  };
  Finding f = one("dgx1v_inactive_links", "NVLINK_INACTIVE");
  EXPECT_EQ(f.what, "GPU3: 4 of 6 NVLinks active (3 and 5 inactive)");
  EXPECT_THAT(f.subjects, ElementsAre("GPU3"));
  f = one("a100_pcie_pairs_8_cgroup", "CPUS_FAR");
  EXPECT_EQ(f.what, "no allowed CPU is local to GPU4-7");
  EXPECT_THAT(f.subjects, ElementsAre("GPU4", "GPU5", "GPU6", "GPU7"));
  f = one("b200_8_one_gpu_no_nvlink", "NVLINK_GPU_ALONE");
  EXPECT_THAT(f.subjects, ElementsAre("GPU2"));
  EXPECT_THAT(f.impact, HasSubstr("NCCL does not say so"));
  f = one("rtx3090_2_bad_bridge", "NVLINK_COUNT");
  EXPECT_EQ(f.what, "GPU0-GPU1 has 3 NVLinks, which no sound bridge gives");
  EXPECT_EQ(f.evidence, "a bridge of a RTX 3090 has 4 links, found 3");
  f = one("gb300_2tray_one_gpu_no_nvlink", "NVLINK_GPU_ALONE");
  EXPECT_THAT(f.subjects, ElementsAre("host1:GPU1"));
  auto slots = find_problems(fixture("rtx3090_4_degraded_slots"), {});
  for (const Finding& s : slots) {
    EXPECT_NE(s.subjects.at(0), "GPU0") << s.code;
  }
  EXPECT_THAT(find(slots, "PCIE_WIDTH")->what, HasSubstr("GPU1 runs on x4 of x16"));
  EXPECT_THAT(find(slots, "PCIE_NOT_JUDGED")->subjects, ElementsAre("GPU3")) << "it idles";
}

// ---- NVLink ---------------------------------------------------------------------------------------------------------

TEST(FindingsNvlink, CardsWithoutABridgeAreHealthy) {
  Topology t = fixture("a100_pcie_2_sys");
  for (GpuDevice& g : t.gpus) {
    g.nvlinks_existing = 12;
    g.nvlinks_active = 0;
  }
  EXPECT_FALSE(has(t, "NVLINK_INACTIVE"));
  t.gpus[0].nvlinks_active = 8;  // one of three bridges is missing
  EXPECT_TRUE(has(t, "NVLINK_INACTIVE"));
}

TEST(FindingsNvlink, FewerLinksThanPeers) {
  Topology t = fixture("dgx_h100_8");
  EXPECT_FALSE(has(t, "NVLINK_FEWER_THAN_PEERS"));
  t.gpus[5].nvlinks_active = 16;
  auto findings = find_topology_problems(t);
  ASSERT_NE(find(findings, "NVLINK_FEWER_THAN_PEERS"), nullptr);
  EXPECT_EQ(find(findings, "NVLINK_FEWER_THAN_PEERS")->what, "GPU5 has 16 NVLinks, its peers have 18");
  for (GpuDevice& g : t.gpus) g.nvlinks_active = 16;
  EXPECT_TRUE(has(t, "NVLINK_FEWER_THAN_MODEL")) << "all of them are short";
  EXPECT_FALSE(has(t, "NVLINK_FEWER_THAN_PEERS"));
}

TEST(FindingsNvlink, OnePairOfAMesh) {
  Topology t = fixture("perlmutter_a100_4_nv4");
  for (GpuDevice& g : t.gpus) g.nvlinks_active.reset();
  EXPECT_FALSE(has(t, "NVLINK_PAIR_FEWER"));
  t.pairs[1][2].nvlinks = t.pairs[2][1].nvlinks = 3;
  auto findings = find_topology_problems(t);
  ASSERT_NE(find(findings, "NVLINK_PAIR_FEWER"), nullptr);
  EXPECT_THAT(find(findings, "NVLINK_PAIR_FEWER")->subjects, ElementsAre("GPU1-GPU2"));
}

// Two cards, joined as `nvidia-smi topo -m` says.
Topology pair_of(const std::string& name, int links) {
  const std::string nv = "NV" + std::to_string(links);
  Topology t = parse_topology("\tGPU0\tGPU1\nGPU0\t X \t" + nv + "\nGPU1\t" + nv + "\t X \n");
  for (GpuDevice& g : t.gpus) g.name = name;
  return t;
}

TEST(FindingsNvlink, CountsThatNoSoundBridgeGives) {
  const std::map<std::string, std::vector<int>> sound{
      {"NVIDIA GeForce RTX 3090", {4}},
      {"NVIDIA RTX A6000", {4}},
      {"NVIDIA A40", {4}},
      {"NVIDIA A100 80GB PCIe", {4, 8, 12}},
      {"NVIDIA H100 NVL", {4, 8, 12}},
      {"NVIDIA H200 NVL", {6, 12}},
      {"NVIDIA GeForce RTX 2080 Ti", {2}},
      {"NVIDIA A100-SXM4-40GB", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
      {"Tesla V100-SXM2-16GB", {1, 2, 3, 4, 5, 6}}};
  for (const auto& [name, counts] : sound)
    for (int links = 1; links < 18; ++links) {  // 18 lead to switches
      const bool fine = std::find(counts.begin(), counts.end(), links) != counts.end();
      EXPECT_EQ(has(pair_of(name, links), "NVLINK_COUNT"), !fine) << name << ' ' << links;
    }
  const auto findings = find_topology_problems(pair_of("NVIDIA GeForce RTX 3090", 3));
  EXPECT_EQ(find(findings, "NVLINK_COUNT")->severity, Severity::error);
  EXPECT_FALSE(find(findings, "NVLINK_FEWER_THAN_MODEL")) << "the same thing once";
  EXPECT_THAT(find(find_topology_problems(pair_of("NVIDIA GeForce RTX 3090", 12)), "NVLINK_COUNT")->what,
              HasSubstr("more than a RTX 3090 has"));
}

TEST(FindingsNvlink, TheComputeCapabilityStandsForAModelThatIsNotNamed) {
  Topology t = pair_of("", 3);
  EXPECT_FALSE(has(t, "NVLINK_COUNT")) << "may be two V100";
  for (GpuDevice& g : t.gpus) g.sm = 86;
  EXPECT_THAT(find(find_topology_problems(t), "NVLINK_COUNT")->evidence,
              HasSubstr("any GPU of compute capability 8.6 has 4 links"));
  for (GpuDevice& g : t.gpus) g.sm = 80;
  EXPECT_FALSE(has(t, "NVLINK_COUNT")) << "may be A100 on a board";
  for (GpuDevice& g : t.gpus) g.sm = 86, g.name = "NVIDIA Something New";
  EXPECT_FALSE(has(t, "NVLINK_COUNT"));
}

TEST(FindingsNvlink, EndsThatDisagree) {
  Topology t = fixture("dgx1v_v100_8");
  EXPECT_FALSE(has(t, "NVLINK_ASYMMETRIC"));
  t.pairs[0][3].nvlinks = 1;
  EXPECT_TRUE(has(t, "NVLINK_ASYMMETRIC"));
}

TEST(FindingsNvlink, SpeedBelowTheModels) {
  Topology t = fixture("dgx_h100_8");
  for (GpuDevice& g : t.gpus) g.nvlink_gbps = 26.562;
  EXPECT_FALSE(has(t, "NVLINK_SLOW"));
  t.gpus[1].nvlink_gbps = 19.9;
  EXPECT_TRUE(has(t, "NVLINK_SLOW"));
}

TEST(FindingsNvlink, FabricStateAndHealth) {
  Topology t = fixture("dgx_h100_8");
  for (GpuDevice& g : t.gpus) g.fabric = NvFabric{.state = 3, .clique = 0, .health_mask = 0xaa, .cluster_uuid = ""};
  EXPECT_THAT(codes(find_topology_problems(t)), ElementsAre()) << "0xaa: all four fields say no";
  t.gpus[2].fabric->state = 2;
  EXPECT_THAT(codes(find_topology_problems(t)), ElementsAre("FABRIC_NOT_READY"));
  t.gpus[2].fabric->state = 3;
  t.gpus[2].fabric->health_mask = 0xa9 | 5 << 8;
  EXPECT_THAT(codes(find_topology_problems(t)), ElementsAre("FABRIC_UNHEALTHY"));
  EXPECT_THAT(fabric_health_problems(0xa9 | 5 << 8), ElementsAre("degraded bandwidth", "too few NVLinks"));
  EXPECT_TRUE(fabric_health_problems(0xaa | 1 << 8).empty());
  EXPECT_TRUE(fabric_health_problems(0).empty());
}

TEST(FindingsNvlink, MulticastLost) {
  Topology t = fixture("hgx_h200_8");
  for (GpuDevice& g : t.gpus) g.multicast = true;
  EXPECT_FALSE(has(t, "NVLS_LOST"));
  t.gpus[0].multicast = false;
  EXPECT_TRUE(has(t, "NVLS_LOST"));
  Topology a = fixture("dgx_a100_8");
  for (GpuDevice& g : a.gpus) g.multicast = false;
  EXPECT_FALSE(has(a, "NVLS_LOST")) << "Ampere's switches do not add";
}

// ---- peers and PCIe -------------------------------------------------------------------------------------------------

TEST(FindingsPeers, AccessOffWrongDataAndSlowCopies) {
  Topology t = fixture("a100_pcie_pairs_8");
  for (auto& r : t.pairs)
    for (DevicePair& p : r) p.peer = PeerAccess::ok;
  EXPECT_THAT(codes(find_topology_problems(t), Severity::warning), ElementsAre());
  t.pairs[0][1].peer = PeerAccess::disabled;
  EXPECT_TRUE(has(t, "P2P_DISABLED"));
  t.pairs[0][1].peer = PeerAccess::ok;
  t.pairs[0][2].peer = PeerAccess::disabled;
  EXPECT_THAT(codes(find_topology_problems(t), Severity::warning), ElementsAre("P2P_OFF_IN_DRIVER"));
  t.pairs[0][2].peer = PeerAccess::ok;
  t.pairs[3][5].copies_right = true;
  t.pairs[0][1].measured_gbps = 230;
  EXPECT_THAT(codes(find_topology_problems(t), Severity::warning), ElementsAre());
  t.pairs[3][5].copies_right = t.pairs[5][3].copies_right = false;
  t.pairs[0][1].measured_gbps = 20;
  EXPECT_THAT(codes(find_topology_problems(t), Severity::warning), ElementsAre("P2P_CORRUPT", "P2P_SLOW"));
}

TEST(FindingsPcie, WidthIsJudgedAtOnceOnDataCentreCardsAndUnderLoadOnOthers) {
  Topology t = fixture("perlmutter_a100_4_nv4");
  t.gpus[1].pcie = {1, 16};
  EXPECT_FALSE(has(t, "PCIE_WIDTH"));
  t.gpus[1].pcie = {1, 8};
  EXPECT_TRUE(has(t, "PCIE_WIDTH"));
  EXPECT_FALSE(has(t, "PCIE_GENERATION")) << "it idles";
  Topology c = fixture("rtx3090_2_bad_bridge");
  c.gpus[0].pcie = {1, 8};
  c.gpus[0].pcie_max = {4, 16};
  EXPECT_FALSE(has(c, "PCIE_WIDTH"));
  c.gpus[0].pcie_judged = true;
  EXPECT_TRUE(has(c, "PCIE_WIDTH"));
}

TEST(FindingsPcie, TheSlotLimitsTheCard) {
  Topology t = fixture("rtx4090_8_pcie_switches");
  GpuDevice& g = t.gpus[0];
  g.pcie = {3, 16};
  g.pcie_judged = true;
  EXPECT_TRUE(has(t, "PCIE_GENERATION"));
  for (PciBridge& b : t.bridges) b.link_max = {3, 16};
  EXPECT_FALSE(has(t, "PCIE_GENERATION")) << "the slot can do no more";
  g.pcie = {3, 4};
  for (PciBridge& b : t.bridges) b.link_max = {3, 4};
  auto findings = find_topology_problems(t);
  ASSERT_NE(find(findings, "PCIE_WIDTH"), nullptr);
  EXPECT_THAT(find(findings, "PCIE_WIDTH")->what, HasSubstr("its slot has no more lanes"));
}

TEST(FindingsPcie, MeasuredCopies) {
  Topology t = fixture("rtx4090_8_pcie_switches");
  t.gpus[0].host_copy_gbps = 23;
  EXPECT_FALSE(has(t, "PCIE_SLOW"));
  t.gpus[0].host_copy_gbps = 6;
  EXPECT_TRUE(has(t, "PCIE_SLOW"));
}

TEST(FindingsPcie, LinkThatCannotBeRead) {
  Topology t = fixture("h200_vm_1");
  for (TopologySource source : {TopologySource::live, TopologySource::nccl_xml}) {
    t.source = source;
    const auto findings = find_topology_problems(t);
    ASSERT_TRUE(find(findings, "PCIE_NOT_TOLD"));
    EXPECT_THAT(find(findings, "PCIE_NOT_TOLD")->impact, HasSubstr("NCCL takes width 0 for 16 lanes"));
  }
  t.source = TopologySource::topo_m;  // tells nothing of PCIe links
  EXPECT_FALSE(has(t, "PCIE_NOT_TOLD"));
}

// A virtual machine whose bridges claim one lane of Gen1 and whose cards claim none.
TEST(FindingsPcie, BridgesOfAHypervisorAboveCardsOfWidthZero) {
  Topology t = fixture("h100_vm_8_bogus_bridges");
  for (GpuDevice& g : t.gpus) g.pcie_max = g.pcie = {};
  const auto findings = find_topology_problems(t);
  ASSERT_TRUE(find(findings, "PCIE_BOGUS_BRIDGE"));
  EXPECT_EQ(find(findings, "PCIE_BOGUS_BRIDGE")->evidence, "the bridge says 2.5 GT/s x1, the card width 0");
  EXPECT_THAT(find(findings, "PCIE_BOGUS_BRIDGE")->remedy, HasSubstr("NCCL_TOPO_FILE"));
  for (GpuDevice& g : t.gpus) g.pcie_max = {1, 1};  // a riser of one lane is what it says
  EXPECT_FALSE(has(t, "PCIE_BOGUS_BRIDGE"));
}

// ---- GPUs, hosts, ranks ---------------------------------------------------------------------------------------------

TEST(FindingsGpu, StatesThatHurt) {
  Topology t = fixture("dgx_h100_8");
  GpuDevice& g = t.gpus[6];
  g.mig = g.exclusive_compute = g.ecc_errors = false;
  g.persistence = true;
  g.throttle_reasons = 0x1 | 0x4;  // idle, power cap: usual
  EXPECT_THAT(codes(find_topology_problems(t)), ElementsAre());
  g.mig = g.exclusive_compute = g.ecc_errors = true;
  g.persistence = false;
  g.throttle_reasons = 0x40;
  EXPECT_THAT(codes(find_topology_problems(t)),
              ElementsAre("COMPUTE_EXCLUSIVE", "ECC_ERRORS", "MIG_ON", "PERSISTENCE_OFF", "THROTTLED"));
  g = t.gpus[5];
  t.gpus[1].name = "NVIDIA H200";
  EXPECT_TRUE(has(t, "GPUS_MIXED"));
}

TEST(FindingsGpu, ErrorsOfLinks) {
  Topology t = fixture("dgx_h100_8");
  for (GpuDevice& g : t.gpus) g.nvlink_errors = g.nvlink_errors_load = g.pcie_replays = g.pcie_replays_load = 0;
  EXPECT_THAT(codes(find_topology_problems(t)), ElementsAre());
  t.gpus[2].nvlink_errors = t.gpus[5].pcie_replays = 3;
  EXPECT_THAT(codes(find_topology_problems(t)), ElementsAre("NVLINK_ERRORS", "PCIE_REPLAYS"));
  EXPECT_THAT(codes(find_topology_problems(t), Severity::warning), ElementsAre());
  t.gpus[2].nvlink_errors = 5000;
  t.gpus[5].pcie_replays_load = 1;
  auto findings = find_topology_problems(t);
  EXPECT_THAT(codes(findings, Severity::warning), ElementsAre("NVLINK_ERRORS", "PCIE_REPLAYS"));
  EXPECT_THAT(find(findings, "NVLINK_ERRORS")->evidence, HasSubstr("GPU2: 5000 since"));
  EXPECT_THAT(find(findings, "PCIE_REPLAYS")->evidence, HasSubstr("GPU5: 1 during"));
  t.gpus[3].nvlink_errors = 1;
  EXPECT_EQ(codes(find_topology_problems(t)).size(), 3u) << "the few beside the many";
}

TEST(FindingsHosts, DifferencesBetweenHosts) {
  Topology t = replicate(fixture("dgx_h100_8"), 3);
  for (HostInfo& h : t.hosts) {
    h.cpu_vendor = "GenuineIntel";
    h.driver = "580.65";
    h.nccl = "2.28.9";
  }
  EXPECT_THAT(codes(find_topology_problems(t)), ElementsAre());
  t.hosts[1].nccl = "2.20.5";
  t.hosts[2].driver = "570.1";
  t.hosts[2].cpu_vendor = "AuthenticAMD";
  t.gpus[8].name = "NVIDIA H200";
  auto findings = find_topology_problems(t);
  EXPECT_THAT(codes(findings, Severity::warning),
              ElementsAre("HOSTS_DIFFER_CPU", "HOSTS_DIFFER_DRIVER", "HOSTS_DIFFER_GPU", "HOSTS_DIFFER_NCCL"));
  EXPECT_THAT(find(findings, "HOSTS_DIFFER_CPU")->subjects, ElementsAre("host2"));
}

TEST(FindingsRanks, UnevenRanksAndGroupsAcrossIslands) {
  EXPECT_TRUE(find_rank_problems({8, 8, 8}).empty());
  EXPECT_TRUE(find_rank_problems({}).empty());
  auto uneven = find_rank_problems({8, 7});
  ASSERT_EQ(uneven.size(), 1u);
  EXPECT_THAT(uneven[0].subjects, ElementsAre("host1"));
  Topology t = fixture("a100_pcie_pairs_8");
  EXPECT_TRUE(find_group_problems(t, {2, 3}, "tensor").empty());
  auto spans = find_group_problems(t, {0, 1, 2}, "tensor");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_THAT(spans[0].what, HasSubstr("group tensor spans 2 NVLink islands"));
  EXPECT_TRUE(find_group_problems(t, {1, 2}, "tensor").size() == 1) << "an island would have held two";
  EXPECT_TRUE(find_group_problems(fixture("dgx_h100_8"), {0, 5}, "tensor").empty());
  EXPECT_TRUE(find_group_problems(fixture("rtx4090_8_all_sys"), {0, 5}, "tensor").empty()) << "there is no NVLink";
}

// ---- surroundings ---------------------------------------------------------------------------------------------------

Environment healthy() {
  Environment e;
  e.shm_bytes = int64_t(64) << 30;
  e.memlock_bytes = INT64_MAX;
  e.open_files = 65536;
  e.allowed_cpus = e.online_cpus = "0-223";
  e.iommu_translates = false;
  e.acs_redirects.emplace();
  e.interfaces = {{"lo", true, true}, {"eth0", true, true, "10.0.0.5"}, {"docker0", true, true}, {"ib0", false, false}};
  e.nvidia_on_pci = 8;
  return e;
}

Topology machine() {
  Topology t = fixture("a100_pcie_pairs_8");
  t.nics.push_back({});
  t.nics[0].infiniband = true;
  for (auto& r : t.pairs) r.emplace_back();
  t.pairs.emplace_back(9);
  return t;
}

TEST(FindingsLimits, EachHasItsThreshold) {
  Topology t = machine();
  EXPECT_THAT(codes(find_environment_problems(t, healthy())), ElementsAre());
  EXPECT_THAT(codes(find_environment_problems(t, {})), ElementsAre()) << "what is not known is no fault";
  auto with = [&](auto change) {
    Environment e = healthy();
    change(e);
    return codes(find_environment_problems(t, e));
  };
  EXPECT_THAT(with([](auto& e) { e.shm_bytes = 64 << 20; }), ElementsAre("SHM_SMALL"));
  EXPECT_THAT(with([](auto& e) { e.memlock_bytes = 8 << 20; }), ElementsAre("MEMLOCK_LOW"));
  EXPECT_THAT(with([](auto& e) { e.open_files = 256; }), ElementsAre("FILES_LOW"));
  EXPECT_THAT(with([](auto& e) { e.allowed_cpus = "0,1"; }), ElementsAre("CPUS_FAR", "CPUS_FEW"));
  EXPECT_THAT(with([](auto& e) { e.allowed_cpus = "0-31,64-95"; }), ElementsAre("CPUS_FAR"));
  EXPECT_THAT(with([](auto& e) { e.iommu_translates = true; }), ElementsAre("IOMMU_ON"));
  EXPECT_THAT(with([](auto& e) { e.acs_redirects->push_back({0, 1, 0, 0}); }), ElementsAre("ACS_ON"));
  EXPECT_THAT(with([](auto& e) { e.nvidia_on_pci = 10; }), ElementsAre("GPUS_HIDDEN"));
  EXPECT_THAT(with([](auto& e) { e.driver_error = "version mismatch of driver and library"; }),
              ElementsAre("DRIVER_BROKEN"));
  t.hosts[0].virtual_machine = true;
  EXPECT_THAT(with([](auto& e) { e.iommu_translates = true; }), ElementsAre()) << "the hypervisor's business";
  t.hosts[0].container = true;
  Environment e = healthy();
  e.shm_bytes = 64 << 20;
  auto findings = find_environment_problems(t, e);
  EXPECT_EQ(findings.at(0).severity, Severity::error);
  EXPECT_THAT(findings[0].remedy, HasSubstr("--shm-size"));
}

TEST(FindingsLimits, OneGpuNeedsNoSharedMemory) {
  Environment e = healthy();
  e.shm_bytes = 64 << 20;
  e.nvidia_on_pci = 1;
  EXPECT_THAT(codes(find_environment_problems(fixture("h200_vm_1"), e)), ElementsAre());
  e.ranks_on_host = 4;
  EXPECT_THAT(codes(find_environment_problems(fixture("h200_vm_1"), e)), ElementsAre("SHM_SMALL"));
}

TEST(FindingsVariables, HarmfulOnesAndHarmlessOnes) {
  Topology pairs = machine(), h200 = fixture("hgx_h200_8");
  auto with = [&](const Topology& t, const std::string& name, const std::string& value) {
    Environment e = healthy();
    e.variables[name] = value;
    auto list = codes(find_environment_problems(t, e));
    return list.empty() ? "" : list.size() == 1 ? list[0] : "several";
  };
  EXPECT_EQ(with(pairs, "NCCL_P2P_DISABLE", "1"), "ENV_NCCL_P2P_DISABLE");
  EXPECT_EQ(with(pairs, "NCCL_P2P_DISABLE", "0"), "");
  EXPECT_EQ(with(pairs, "NCCL_P2P_LEVEL", "LOC"), "ENV_NCCL_P2P_LEVEL");
  EXPECT_EQ(with(pairs, "NCCL_P2P_LEVEL", "SYS"), "");
  EXPECT_EQ(with(pairs, "NCCL_SHM_DISABLE", "1"), "ENV_NCCL_SHM_DISABLE");
  EXPECT_EQ(with(pairs, "NCCL_IB_DISABLE", "1"), "ENV_NCCL_IB_DISABLE");
  EXPECT_EQ(with(h200, "NCCL_IB_DISABLE", "1"), "") << "it has no InfiniBand";
  EXPECT_EQ(with(pairs, "NCCL_NET", "Socket"), "ENV_NCCL_NET");
  EXPECT_EQ(with(pairs, "NCCL_NET_GDR_LEVEL", "LOC"), "ENV_NCCL_NET_GDR_LEVEL");
  EXPECT_EQ(with(h200, "NCCL_NVLS_ENABLE", "0"), "ENV_NCCL_NVLS_ENABLE");
  EXPECT_EQ(with(h200, "NCCL_NVLS_ENABLE", "1"), "");
  EXPECT_EQ(with(pairs, "NCCL_NVLS_ENABLE", "0"), "") << "Ampere has none";
  EXPECT_EQ(with(pairs, "NCCL_IGNORE_DISABLED_P2P", "1"), "ENV_NCCL_IGNORE_DISABLED_P2P");
  EXPECT_EQ(with(pairs, "CUDA_LAUNCH_BLOCKING", "1"), "ENV_CUDA_LAUNCH_BLOCKING");
  EXPECT_EQ(with(pairs, "NCCL_MAX_CTAS", "2"), "ENV_NCCL_MAX_CTAS");
  EXPECT_EQ(with(pairs, "NCCL_MAX_CTAS", "32"), "");
  EXPECT_EQ(with(pairs, "NCCL_BUFFSIZE", "65536"), "ENV_NCCL_BUFFSIZE");
  EXPECT_EQ(with(pairs, "NCCL_ALGO", "Tree"), "NCCL_ALGO_ALL");
  EXPECT_EQ(with(pairs, "NCCL_ALGO", "allreduce:tree"), "NCCL_ALGO_SET");
  EXPECT_EQ(with(pairs, "NCCL_ALGO", "ring;allreduce:tree"), "NCCL_ALGO_SET");
  EXPECT_EQ(with(pairs, "NCCL_SOCKET_IFNAME", "eth"), "");
  EXPECT_EQ(with(pairs, "NCCL_SOCKET_IFNAME", "=eth"), "NCCL_INTERFACE");
  EXPECT_EQ(with(pairs, "NCCL_SOCKET_IFNAME", "ib0"), "NCCL_INTERFACE") << "it is down";
  EXPECT_EQ(with(pairs, "NCCL_SOCKET_IFNAME", "docker0"), "NCCL_INTERFACE_LOCAL");
  EXPECT_EQ(with(pairs, "NCCL_SOCKET_IFNAME", "^docker,lo"), "");
  EXPECT_EQ(with(pairs, "NCCL_DEBUG", "INFO"), "");
  EXPECT_EQ(with(pairs, "NCCL_TOPO_FILE", "/x"), "ENV_NCCL_TOPO_FILE");
  Environment e = healthy();
  e.variables["NCCL_TOPO_FILE"] = "/x";
  e.topo_file_exists = false;
  EXPECT_EQ(find_environment_problems(pairs, e).at(0).severity, Severity::error);
}

TEST(FindingsVariables, InterfacesOfAJobOfSeveralHosts) {
  Topology t = machine();
  Environment e = healthy();
  e.hosts_of_job = 2;
  EXPECT_EQ(find(find_environment_problems(t, e), "NETWORK_LOCAL_ONLY"), nullptr);
  e.variables["NCCL_SOCKET_IFNAME"] = "docker0";
  auto findings = find_environment_problems(t, e);
  EXPECT_THAT(find(findings, "NCCL_INTERFACE_LOCAL")->evidence, HasSubstr("eth0 (10.0.0.5)"));
  e.variables.clear();
  e.interfaces[1].has_address = false;
  findings = find_environment_problems(t, e);
  ASSERT_NE(find(findings, "NETWORK_LOCAL_ONLY"), nullptr);
  EXPECT_THAT(find(findings, "NETWORK_LOCAL_ONLY")->evidence, HasSubstr("eth0 (no address)"));
  e.hosts_of_job = 1;
  EXPECT_EQ(find(find_environment_problems(t, e), "NETWORK_LOCAL_ONLY"), nullptr) << "one host needs no network";
}

TEST(Findings, AreSortedPrintedAndReadBack) {
  Topology t = fixture("b200_8_one_gpu_no_nvlink");
  Environment e = healthy();
  e.variables["NCCL_P2P_DISABLE"] = "1";
  auto findings = find_problems(t, e);
  EXPECT_EQ(findings.at(0).code, "NVLINK_GPU_ALONE");
  std::string text = format_findings(findings);
  EXPECT_THAT(text, HasSubstr("error NVLINK_GPU_ALONE (GPU2): GPU2 has no NVLink, its 7 peers have"));
  EXPECT_THAT(text, HasSubstr("remedy:"));
  auto again = findings_from_json(findings_to_json(findings));
  ASSERT_EQ(again.size(), findings.size());
  EXPECT_EQ(again[0].subjects, findings[0].subjects);
  EXPECT_EQ(again[0].severity, findings[0].severity);
  EXPECT_EQ(again[0].remedy, findings[0].remedy);
  for (const Finding& f : findings) {
    EXPECT_FALSE(f.what.empty() || f.evidence.empty()) << f.code;
  }
}

}  // namespace
}  // namespace xylem
