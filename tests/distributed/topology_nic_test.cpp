// SPDX-License-Identifier: Apache-2.0
// NICs that are far from GPUs, or shared while others idle: what is found, and which NIC ranks get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "distributed/topology/findings.h"
#include "distributed/topology/placement.h"

namespace xylem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Topology fixture(const std::string& name) {
  return load_topology(std::string(XY_FIXTURES) + "/topologies/" + name + ".json");
}

const Finding* find(const std::vector<Finding>& findings, const std::string& code) {
  for (const Finding& f : findings)
    if (f.code == code) return &f;
  return nullptr;
}

bool has(const Topology& t, const std::string& code) { return find(find_topology_problems(t), code) != nullptr; }

// Eight GPUs; of four the NICs are SYS. `between` joins the GPUs.
Topology far_half(const std::string& between) {
  std::string text = "\t";
  for (int g = 0; g < 8; ++g) text += "GPU" + std::to_string(g) + "\t";
  text += "mlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity\n";
  for (int g = 0; g < 8; ++g) {
    text += "GPU" + std::to_string(g);
    for (int o = 0; o < 8; ++o) text += o == g ? "\t X " : "\t" + between;
    text += g < 4 ? "\tPXB\tPXB\t0-31\t0\n" : "\tSYS\tSYS\t32-63\t1\n";
  }
  return parse_topology(text);
}

TEST(FindingsNic, GpusWithoutANicOnTheirSide) {
  const auto findings = find_topology_problems(far_half("NODE"));
  const Finding* f = find(findings, "NIC_FAR");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->severity, Severity::warning);
  EXPECT_THAT(f->subjects, ElementsAre("GPU4", "GPU5", "GPU6", "GPU7"));
  EXPECT_THAT(f->what, HasSubstr("GPU4-7 have no NIC of their own"));
  EXPECT_THAT(f->evidence, HasSubstr("NUMA node 1 has no NIC; GPU0-3 have one near"));
  EXPECT_EQ(find(find_topology_problems(far_half("NV12")), "NIC_FAR")->severity, Severity::info)
      << "NVLink leads to GPUs with a NIC";
  for (const char* name : {"a100_4_nv4_pxb", "a100_8_ten_nics", "dgx_a100_8", "hgx_h200_8", "h200_vm_flat_8"})
    EXPECT_FALSE(has(fixture(name), "NIC_FAR")) << name;
  Topology one = far_half("NODE");
  one.nics[1].up = false;
  EXPECT_EQ(find(find_topology_problems(one), "NIC_FAR")->severity, Severity::info)
      << "one NIC is near one socket alone";
}

// Boards whose sockets have several root complexes say SYS inside a NUMA node too.
TEST(FindingsNic, SysOnOneNumaNodeIsNotFar) {
  Topology t = fixture("rtx4090_8_all_sys");  // its NICs are PHB for GPU6
  const auto findings = find_topology_problems(t);
  EXPECT_THAT(find(findings, "NIC_FAR")->subjects, ElementsAre("GPU0", "GPU1", "GPU2", "GPU3"));
  EXPECT_EQ(find(findings, "NIC_FAR")->severity, Severity::info) << "cards without GPUDirect";
  for (GpuDevice& g : t.gpus) g.numa = 1;
  EXPECT_FALSE(has(t, "NIC_FAR"));
}

// Two GPUs and two NICs below a switch whose virtual bridges put one NIC next to both.
Topology virtual_bridges(const char* second) {
  const std::string other = second;
  return parse_topology("\tGPU0\tGPU1\tmlx5_0\tmlx5_1\nGPU0\t X \tPIX\tPIX\t" + other + "\nGPU1\tPIX\t X \tPIX\t" +
                        other + "\n");
}

TEST(FindingsNic, OneNicForTwoWhileAnotherIdles) {
  const auto findings = find_topology_problems(virtual_bridges("PXB"));
  const Finding* f = find(findings, "NIC_SHARED");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->what, "GPU0, GPU1 have NIC0 as their nearest, while NIC1 is nobody's");
  EXPECT_THAT(f->evidence, HasSubstr("NIC0 is PIX and NIC1 PXB"));
  EXPECT_FALSE(has(virtual_bridges("PIX"), "NIC_SHARED")) << "one for each";
  EXPECT_FALSE(has(virtual_bridges("NODE"), "NIC_SHARED")) << "behind another switch: for storage, or the host";
  Topology down = virtual_bridges("PXB");
  down.nics[1].up = false;
  EXPECT_FALSE(has(down, "NIC_SHARED"));
  Topology slow = virtual_bridges("PXB");
  slow.nics[0].gbps = 50;
  slow.nics[1].gbps = 3;
  EXPECT_FALSE(has(slow, "NIC_SHARED"));
}

TEST(PlacementNic, AnIdleNicBelowTheSameSwitchIsUsed) {
  const auto nics = [](const Topology& t) {
    std::set<int> used;
    for (const RankPlace& r : place_ranks(t).ranks) used.insert(r.nic.value());
    return used;
  };
  EXPECT_THAT(nics(virtual_bridges("PXB")), ElementsAre(0, 1));
  EXPECT_THAT(nics(virtual_bridges("NODE")), ElementsAre(0)) << "beyond the switch";
  Topology slow = virtual_bridges("PXB");
  slow.nics[0].gbps = 50;
  slow.nics[1].gbps = 3;
  EXPECT_THAT(nics(slow), ElementsAre(0));
}

TEST(PlacementNic, RanksFarFromEveryNicAreTold) {
  Topology t = parse_topology("\tGPU0\tGPU1\tmlx5_0\nGPU0\t X \tSYS\tPIX\nGPU1\tSYS\t X \tSYS\n");
  RankPlacement p = place_ranks(t);
  ASSERT_EQ(p.findings.size(), 1u);
  EXPECT_EQ(p.findings[0].code, "RANK_NIC_FAR");
  EXPECT_THAT(p.findings[0].subjects, ElementsAre("rank 1"));
  EXPECT_THAT(p.text(t), HasSubstr("rank 1: GPU1, NIC0 (far: SYS)"));
  EXPECT_THAT(p.text(t), HasSubstr("rank 0: GPU0, NIC0\n"));
}

}  // namespace
}  // namespace xylem
