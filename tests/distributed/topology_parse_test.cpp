// SPDX-License-Identifier: Apache-2.0
// Readers of topologies: the machines in fixtures/topologies, and every state in which nvidia-smi's tables are found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/util/check.h"
#include "distributed/topology/cpulist.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/topology.h"
#include "tests/support.h"

namespace xylem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Islands = std::vector<std::vector<int>>;

Topology fixture(const std::string& name) {
  return load_topology(std::string(XY_FIXTURES) + "/topologies/" + name + ".json");
}

std::string row(const Topology& t, int device) {
  std::string text;
  for (int d = 0; d < t.devices(); ++d) text += (d ? " " : "") + t.pair(device, d).str();
  return text;
}

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_topology(text, "input"); });
}

// ---- the machines ---------------------------------------------------------------------------------------------------

struct Machine {
  const char* name;
  int gpus, nics, switches, links;
  Islands islands;
  const char* first_row;
  int sm;         // 0: not told
  double gbps01;  // between GPU0 and GPU1; 0: not told
};

const Islands kEight{{0, 1, 2, 3, 4, 5, 6, 7}}, kFour{{0, 1, 2, 3}}, kPairs{{0, 1}, {2, 3}, {4, 5}, {6, 7}};
const Islands kAlone{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

const Machine kMachines[] = {
    {"a100_4_nv4_pxb", 4, 4, 0, 6, kFour, "X NV4 NV4 NV4 PXB SYS SYS SYS", 80, 80},
    {"a100_8_ten_nics", 8, 10, 1, 8, kEight,
     "X NV12 NV12 NV12 NV12 NV12 NV12 NV12 PXB PXB NODE NODE NODE SYS SYS SYS SYS SYS", 80, 240},
    {"a100_pcie_2_sys", 2, 0, 0, 0, {{0}, {1}}, "X SYS", 80, 0},
    {"a100_pcie_pairs_8", 8, 0, 0, 4, kPairs, "X NV12 NODE NODE SYS SYS SYS SYS", 80, 240},
    {"a100_pcie_pairs_8_cgroup", 8, 1, 0, 4, kPairs, "X NV12 NODE NODE NODE NODE NODE NODE NODE", 80, 240},
    {"a6000_trio_nv4_pair", 3, 0, 0, 1, {{0, 1}, {2}}, "X NV4 NODE", 86, 48},
    {"aws_g5_a10g_8", 8, 0, 0, 0, kAlone, "X PHB PHB PHB PHB PHB PHB PHB", 86, 0},
    {"aws_p4d_a100_8", 8, 4, 0, 0, kAlone, "X PIX PHB PHB SYS SYS SYS SYS PIX PHB SYS SYS", 80, 12},
    {"azure_ncv4_a100_4", 4, 1, 0, 0, {{0}, {1}, {2}, {3}}, "X SYS SYS SYS ?", 80, 0},
    {"azure_ndv2_v100_8", 8, 1, 0, 0, kAlone, "X PHB PHB PHB SYS SYS SYS SYS PHB", 0, 24},
    {"azure_ndv4_a100_8", 8, 8, 0, 0, kAlone, "X PIX SYS SYS SYS SYS SYS SYS PIX PIX SYS SYS SYS SYS SYS SYS", 0, 24},
    {"b200_8_one_gpu_no_nvlink",
     8,
     0,
     1,
     7,
     {{0, 1, 3, 4, 5, 6, 7}, {2}},
     "X NV18 NODE NV18 NV18 NV18 NV18 NV18",
     100,
     721.8},
    {"dgx1v_inactive_links", 8, 1, 0, 15, kEight, "X NV1 NV1 NV1 NV2 SYS SYS SYS NODE", 70, 20},
    {"dgx1v_partial_nvlink", 2, 0, 0, 7, {{0, 1}}, "X NV1", 70, 20},
    {"dgx1v_v100_8", 8, 1, 0, 16, kEight, "X NV1 NV1 NV2 NV2 SYS SYS SYS NODE", 70, 20},
    {"dgx2_v100_16",
     16,
     10,
     1,
     16,
     {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
     "X NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 NV6 PIX PXB NODE NODE SYS SYS SYS SYS SYS SYS",
     70,
     120},
    {"dgx_a100_8", 8, 12, 1, 8, kEight,
     "X NV12 NV12 NV12 NV12 NV12 NV12 NV12 PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS SYS SYS", 80, 240},
    {"dgx_h100_8", 8, 10, 1, 8, kEight, "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX SYS SYS SYS SYS SYS SYS SYS SYS SYS",
     90, 370.8},
    {"gb200_tray_4", 4, 0, 1, 4, kFour, "X NV18 NV18 NV18", 100, 721.8},
    {"gb300_2tray_healthy", 8, 0, 1, 16, kEight, "X NV18 NV18 NV18 NV18 NV18 NV18 NV18", 103, 721.8},
    {"gb300_2tray_one_gpu_no_nvlink",
     8,
     0,
     1,
     15,
     {{0, 1, 2, 3, 4, 6, 7}, {5}},
     "X NV18 NV18 NV18 NV18 NET NV18 NV18",
     103,
     721.8},
    {"h100_4_nv6", 4, 4, 0, 6, kFour, "X NV6 NV6 NV6 PIX SYS SYS SYS", 90, 123.6},
    {"h100_vm_8", 8, 9, 1, 8, kEight, "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 SYS SYS SYS SYS SYS NODE NODE NODE PIX", 90,
     370.8},
    {"h100_vm_8_bogus_bridges", 8, 8, 1, 8, kEight,
     "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX PHB PHB PHB SYS SYS SYS SYS", 90, 370.8},
    {"h200_vm_1", 1, 0, 0, 0, {{0}}, "X", 90, 0},
    {"h200_vm_flat_8", 8, 8, 1, 8, kEight, "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PHB PHB PHB PHB PHB PHB PHB PHB", 90,
     370.8},
    {"hgx_b200_8", 8, 1, 1, 8, kEight, "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 ?", 100, 721.8},
    {"hgx_h200_8", 8, 1, 4, 32, kEight, "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 ?", 90, 370.8},
    {"perlmutter_a100_4_nv4", 4, 4, 0, 6, kFour, "X NV4 NV4 NV4 PHB SYS SYS SYS", 80, 80},
    {"rtx3090_2_bad_bridge", 2, 0, 0, 1, {{0, 1}}, "X NV3", 86, 36},
    {"rtx3090_4_degraded_slots", 4, 0, 0, 0, {{0}, {1}, {2}, {3}}, "X PHB PHB PHB", 86, 0},
    {"rtx3090_4_pairs", 4, 0, 0, 2, {{0, 2}, {1, 3}}, "X PHB NV4 NODE", 86, 0},
    {"rtx4090_8_all_sys", 8, 2, 0, 0, kAlone, "X SYS SYS SYS SYS SYS SYS SYS SYS SYS", 89, 0},
    {"rtx4090_8_pcie_switches", 8, 0, 0, 0, kAlone, "X PIX PIX PIX SYS SYS SYS SYS", 89, 24},
    {"rtx5090_2_p2p_gns", 2, 0, 0, 0, {{0}, {1}}, "X PHB", 120, 0},
};

TEST(TopologyFixtures, HoldTheExpectedMachine) {
  std::set<std::string> names;
  for (const Machine& m : kMachines) {
    SCOPED_TRACE(m.name);
    names.insert(m.name);
    Topology t = fixture(m.name);
    EXPECT_EQ(int(t.gpus.size()), m.gpus);
    EXPECT_EQ(int(t.nics.size()), m.nics);
    EXPECT_EQ(int(t.switches.size()), m.switches);
    EXPECT_EQ(int(t.links.size()), m.links);
    EXPECT_EQ(t.islands(), m.islands);
    EXPECT_EQ(row(t, 0), m.first_row);
    EXPECT_EQ(t.gpus[0].sm.value_or(0), m.sm);
    if (m.gpus > 1) {
      EXPECT_NEAR(t.pair(0, 1).gbps.value_or(0), m.gbps01, 1e-6);
    }
    for (int a = 0; a < t.devices(); ++a)
      for (int b = 0; b < t.devices(); ++b) {
        EXPECT_EQ(t.pair(a, b).str(), t.pair(b, a).str()) << a << " " << b;
      }
    // The written form reads back as the same topology.
    std::string text = to_json(t);
    Topology again = parse_topology_json(text, t.origin);
    EXPECT_EQ(to_json(again), text);
    EXPECT_EQ(again.fingerprint(), t.fingerprint());
  }
  for (auto& file : std::filesystem::directory_iterator(std::string(XY_FIXTURES) + "/topologies"))
    EXPECT_TRUE(names.count(file.path().stem().string())) << file.path() << " is not tested";
}

TEST(TopologyFixtures, SwitchedAndDirectNvlinkAreToldApart) {
  EXPECT_TRUE(fixture("dgx_h100_8").all_pairs_nvswitch());
  EXPECT_TRUE(fixture("dgx2_v100_16").all_pairs_nvswitch());
  EXPECT_TRUE(fixture("gb200_tray_4").all_pairs_nvswitch());
  EXPECT_TRUE(fixture("gb300_2tray_healthy").all_pairs_nvswitch());
  EXPECT_FALSE(fixture("h100_4_nv6").all_pairs_nvswitch());
  EXPECT_FALSE(fixture("dgx1v_v100_8").all_pairs_nvswitch());
  EXPECT_FALSE(fixture("b200_8_one_gpu_no_nvlink").all_pairs_nvswitch());
  EXPECT_FALSE(fixture("h200_vm_1").all_pairs_nvswitch());
}

TEST(TopologyFixtures, Dgx1HasSixLinksForEachGpuAndPairsThatNeedAnother) {
  Topology t = fixture("dgx1v_v100_8");
  for (int a = 0; a < 8; ++a) {
    int sum = 0;
    for (int b = 0; b < 8; ++b) sum += t.pair(a, b).nvlinks;
    EXPECT_EQ(sum, 6) << a;
  }
  auto via = t.nvlink_via(0, 5);
  ASSERT_TRUE(via);
  EXPECT_GT(t.pair(0, *via).nvlinks, 0);
  EXPECT_GT(t.pair(*via, 5).nvlinks, 0);
  EXPECT_FALSE(fixture("a100_pcie_pairs_8").nvlink_via(0, 2));
}

TEST(TopologyFixtures, LinksToGpusThatAreNotShownStayKnown) {
  Topology t = fixture("dgx1v_partial_nvlink");
  EXPECT_EQ(t.gpus[0].nvlinks_active, 6);
  int away = 0;
  for (const FabricLink& l : t.links)
    if (l.a == "GPU0" && l.b == "0000:85:00.0") away = l.count;
  EXPECT_EQ(away, 2);
}

TEST(TopologyFixtures, AffinitiesOfReversedAndVirtualMachines) {
  Topology p = fixture("perlmutter_a100_4_nv4");
  EXPECT_EQ(p.gpus[0].numa, 3);
  EXPECT_EQ(p.gpus[3].numa, 0);
  EXPECT_EQ(p.gpus[3].cpus, "0-15,64-79");
  EXPECT_EQ(p.nics[0].name, "cxi3") << "by address: 0000:01";
  EXPECT_DOUBLE_EQ(*p.nics[0].gbps, 25);
  Topology v = fixture("h200_vm_1");
  EXPECT_FALSE(v.gpus[0].numa);
  EXPECT_TRUE(v.numa.empty());
  EXPECT_EQ(v.gpus[0].pcie_max, (PcieLink{5, 0}));
  EXPECT_EQ(v.gpus[0].name, "H200");
  Topology a = fixture("a100_4_nv4_pxb");
  EXPECT_FALSE(a.gpus[0].numa) << "0-1 is no node";
}

// ---- nvidia-smi topo -m ---------------------------------------------------------------------------------------------

TEST(TopoM, RawOutputWithTerminalCodesNicsAndLegends) {
  Topology t = parse_topo_m(
      "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
      "GPU0\t X \tNV18\tPIX\tSYS\t0-55,112-167\t0\t\tN/A\n"
      "GPU1\tNV18\t X \tSYS\tPIX\t56-111,168-223\t1\t\tN/A\n"
      "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
      "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
      "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
      "  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n");
  EXPECT_EQ(row(t, 0), "X NV18 PIX SYS");
  EXPECT_EQ(row(t, 3), "SYS PIX SYS X");
  EXPECT_EQ(t.gpus[1].cpus, "56-111,168-223");
  EXPECT_EQ(t.gpus[1].numa, 1);
  EXPECT_EQ(t.nics[1].name, "mlx5_1");
  EXPECT_EQ(t.numa.size(), 2u);
  EXPECT_EQ(t.pair(0, 1).path, PathClass::nvswitch) << "no GPU has 18 links to one other";
}

TEST(TopoM, PastedWithSpacesAndWithoutTheEscapeCharacter) {
  Topology t = parse_topology(
      "$ nvidia-smi topo -m\n"
      "        [4mGPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity[0m\n"
      "GPU0     X      PIX     NODE    0-15,32-47      0\n"
      "GPU1    PIX      X      NODE                    1\n"
      "mlx5_0  NODE    NODE     X\n");
  EXPECT_EQ(row(t, 0), "X PIX NODE");
  EXPECT_EQ(t.gpus[0].cpus, "0-15,32-47");
  EXPECT_EQ(t.gpus[1].cpus, "") << "the 1 stands below NUMA, not below CPU";
  EXPECT_EQ(t.gpus[1].numa, 1);
  EXPECT_EQ(t.nics[0].name, "mlx5_0");
}

TEST(TopoM, EmptyAffinityOfACgroupInRawOutput) {
  Topology t = parse_topo_m(
      "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\r\n"
      "GPU0\t X \tNODE\tNODE\t0-15\t0\r\n"
      "GPU1\tNODE\t X \tPHB\t\t1\r\n");
  EXPECT_EQ(t.gpus[1].cpus, "");
  EXPECT_EQ(t.gpus[1].numa, 1);
  EXPECT_EQ(row(t, 2), "NODE PHB X") << "from the column: there is no row";
}

TEST(TopoM, OldDriversSaySoc) {
  Topology t = parse_topo_m("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-9\nGPU1\tSOC\t X \t10-19\n");
  EXPECT_EQ(t.pair(0, 1).path, PathClass::sys);
}

TEST(TopoM, PartialTablesKeepWhatIsKnown) {
  Topology t = parse_topo_m("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\t?\n");
  EXPECT_EQ(row(t, 1), "NV4 X ?");
  EXPECT_EQ(t.pair(1, 2).path, PathClass::unknown);
  EXPECT_FALSE(t.gpus[0].numa);
}

TEST(TopoM, OneGpuHasAHeaderToo) {
  Topology t = parse_topo_m("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\tN/A\n");
  EXPECT_EQ(t.gpus.size(), 1u);
  EXPECT_EQ(t.gpus[0].cpus, "0-7");
  EXPECT_FALSE(t.gpus[0].numa);
}

TEST(TopoM, BothEndsOfALinkAreKept) {
  Topology t = parse_topo_m("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV1\t X \n");
  EXPECT_EQ(t.pair(0, 1).nvlinks, 2);
  EXPECT_EQ(t.pair(1, 0).nvlinks, 1);
}

TEST(TopoM, WhatIsPastedBesideTheTable) {
  Topology t = parse_topology(
      "GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-1234)\n"
      "GPU 1: NVIDIA GeForce RTX 5090 (UUID: GPU-5678)\n\n"
      "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n\n"
      "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\nGPU0\tX\tGNS\nGPU1\tGNS\tX\n\n"
      "$ nvidia-smi topo -p2p n\n \tGPU0\tGPU1\nGPU0\tX\tNS\nGPU1\tNS\tX\n");
  EXPECT_EQ(t.gpus[1].uuid, "GPU-5678");
  EXPECT_EQ(t.gpus[0].sm, 120);
  EXPECT_EQ(t.pair(0, 1).path, PathClass::phb);
  EXPECT_EQ(t.pair(0, 1).peer, PeerAccess::not_supported);
}

TEST(TopoM, NvlinkStatusAlone) {
  Topology t = parse_topology(
      "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: 25.781 "
      "GB/s\n"
      "\t Link 3: <inactive>\n\t Link 4: 25.781 GB/s\n\t Link 5: <inactive>\n");
  ASSERT_EQ(t.gpus.size(), 1u);
  EXPECT_EQ(t.device_name(0), "GPU3");
  EXPECT_EQ(t.gpus[0].nvlinks_existing, 6);
  EXPECT_EQ(t.gpus[0].nvlinks_active, 4);
  EXPECT_THAT(t.gpus[0].nvlinks_down, ElementsAre(3, 5));
  EXPECT_DOUBLE_EQ(*t.gpus[0].nvlink_gbps, 25.781);
  EXPECT_EQ(t.gpus[0].sm, 70);
}

TEST(TopoM, MarksOfTheEncoding) {
  const std::string table = "\tGPU0\tGPU1\r\nGPU0\t X \tNV4\r\nGPU1\tNV4\t X \r\n";
  EXPECT_EQ(parse_topology("\xef\xbb\xbf" + table, "t").pair(0, 1).nvlinks, 4);
  try {
    parse_topology("\xff\xfe" + table, "t.txt");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.message(), testing::HasSubstr("t.txt is UTF-16"));
  }
}

TEST(TopoM, MistakesNameTheLineAndWhatWasExpected) {
  EXPECT_THAT(parse_error("\tGPU0\tGPU1\tmlx5_0\nGPU0\t X \tNV12\tPXB\nGPU1\tNV12\t X \tNODENODE\n"),
              HasSubstr("input, line 3: row GPU1, column mlx5_0 holds 'NODENODE': expected X, NV#, PIX"));
  EXPECT_THAT(parse_error("\tGPU0\tGPU1\nGPU0\t X\n"), HasSubstr("line 2: row GPU0 has 1 cells: expected 2"));
  EXPECT_THAT(parse_error("\tGPU0\tGPU0\nGPU0\t X \tX\n"), HasSubstr("line 1: the header names GPU0 twice"));
  EXPECT_THAT(parse_error("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU2\tNV4\t X \n"),
              HasSubstr("line 3: row GPU2 has no column"));
  EXPECT_THAT(parse_error("\tGPU0\tCPU Affinity\nGPU0\t X \tnone\n"),
              HasSubstr("line 2: the CPU affinity of GPU0 is 'none'"));
  EXPECT_THAT(parse_error("GPU 0: V100\n\t Link 0: fast\n"), HasSubstr("line 2: link 0 is 'fast': expected a speed"));
  EXPECT_THAT(parse_error("hello\nworld\n"), HasSubstr("no table of `nvidia-smi topo -m` in 2 lines"));
  EXPECT_THAT(parse_error(" \n\t\n"), HasSubstr("input is empty"));
}

// ---- NCCL's XML -----------------------------------------------------------------------------------------------------

TEST(NcclXml, TreeLinksAndSockets) {
  std::string text = R"(<!-- written by hand -->
<system version="1">
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:90:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:92:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:12:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:93:00.0" class="0x020700" vendor="0x15b3" device="0x101e" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_1" dev="1" speed="400000" port="1" gdr="1"/></nic>
      </pci>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000"/></nic>
  </cpu>
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="8">
      <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:92:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000"/><net name="lo" dev="3" speed="10000"/></nic>
  </cpu>
</system>)";
  if (parse_error(text).find("pugixml") != std::string::npos) GTEST_SKIP() << "a build without pugixml";
  Topology t = parse_topology(text);
  EXPECT_EQ(t.source, TopologySource::nccl_xml);
  ASSERT_EQ(t.gpus.size(), 2u);
  EXPECT_EQ(t.gpus[0].pci->str(), "0000:12:00.0");
  EXPECT_EQ(t.gpus[0].cpus, "0-15");
  EXPECT_EQ(t.gpus[1].parent->str(), "0000:90:00.0");
  EXPECT_EQ(row(t, 1), "NV4 X PIX ?");
  EXPECT_DOUBLE_EQ(*t.pair(0, 1).gbps, 4 * 20.6);
  EXPECT_DOUBLE_EQ(*t.pair(0, 2).gbps, 22) << "between the sockets of a Sapphire Rapids";
  EXPECT_DOUBLE_EQ(*t.pair(1, 2).gbps, 48);
  ASSERT_EQ(t.nics.size(), 2u);
  EXPECT_TRUE(t.nics[0].infiniband && t.nics[0].gpudirect);
  EXPECT_EQ(t.nics[1].name, "eth0") << "once, without the loopback";
  ASSERT_EQ(t.links.size(), 1u);
  EXPECT_EQ(t.links[0].a + t.links[0].b, "GPU0GPU1");
}

// Files for NCCL_TOPO_FILE that leave everything but the tree to NCCL's own look at the machine.
TEST(NcclXml, DevicesByTheirAddressAlone) {
  const std::string text = R"(<system version="1">
  <cpu numaid="1" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:ff:01.0">
      <pci busid="0000:10:00.0"/>
      <pci busid="0000:11:00.0" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:12:00.0"/>
      <pci busid="0000:13:00.0"/>
    </pci>
  </cpu>
</system>)";
  if (parse_error("<system/>").find("pugixml") != std::string::npos) GTEST_SKIP() << "a build without pugixml";
  Topology t = parse_topology(text);
  EXPECT_TRUE(t.gpus.empty() && t.nics.empty());
  ASSERT_EQ(t.unknown.size(), 4u);
  EXPECT_EQ(t.unknown[1].pci.str(), "0000:11:00.0");
  EXPECT_EQ(t.unknown[1].numa, 1);
  EXPECT_EQ(t.unknown[1].parent->str(), "ffff:ff:01.0");
  auto findings = find_topology_problems(t);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].code, "FILE_PARTIAL");
  EXPECT_THAT(findings[0].what, HasSubstr("4 devices by their address alone"));
  EXPECT_EQ(to_json(parse_topology(to_json(t))), to_json(t));

  // On the machine itself: two GPUs with NVLink and a NIC, numbered the other way round and without a tree.
  Topology here = parse_topology("\tGPU0\tGPU1\tmlx5_0\nGPU0\t X \tNV12\tSYS\nGPU1\tNV12\t X \tSYS\n");
  here.gpus[0].pci = PciAddress::parse("0000:12:00.0");
  here.gpus[1].pci = PciAddress::parse("0000:11:00.0");
  here.nics[0].pci = PciAddress::parse("0000:10:00.0");
  here.nics[0].gbps = 25;
  for (GpuDevice& g : here.gpus) g.name = "NVIDIA A100 80GB PCIe", g.sm = 80, g.nvlinks_active = 12;
  here.gpus[0].pcie_max = here.gpus[1].pcie_max = {4, 16};
  t = parse_topology(text, "file", &here);
  ASSERT_EQ(t.gpus.size(), 2u);
  EXPECT_EQ(t.gpus[0].pci->str(), "0000:11:00.0");
  EXPECT_EQ(t.gpus[0].name, "NVIDIA A100 80GB PCIe");
  EXPECT_EQ(t.gpus[0].pcie_max, (PcieLink{5, 16})) << "what the file says stays";
  EXPECT_EQ(t.gpus[1].pcie_max, (PcieLink{4, 16}));
  EXPECT_EQ(t.gpus[1].numa, 1);
  EXPECT_EQ(row(t, 0), "X NV12 PIX") << "NVLink from the driver, PCIe from the file";
  ASSERT_EQ(t.nics.size(), 1u);
  EXPECT_EQ(t.nics[0].name, "mlx5_0");
  EXPECT_EQ(t.nics[0].gbps, 25);
  ASSERT_EQ(t.unknown.size(), 1u);
  EXPECT_EQ(t.unknown[0].pci.str(), "0000:13:00.0");
}

TEST(NcclXml, MistakesNameTheLineAndWhatWasExpected) {
  if (parse_error("<system/>").find("pugixml") != std::string::npos) GTEST_SKIP() << "a build without pugixml";
  EXPECT_THAT(parse_error("<graphs version=\"1\"/>"), HasSubstr("this is a graph dump of NCCL"));
  EXPECT_THAT(parse_error("<html></html>"), HasSubstr("no <system> element"));
  EXPECT_THAT(parse_error("<system version=\"1\">\n<cpu>\n</system>"), HasSubstr("line 3: no XML"));
  EXPECT_THAT(parse_error("<system>\n<cpu numaid=\"0\" affinity=\"xyz\"/></system>"),
              HasSubstr("line 2: the affinity is 'xyz'"));
  EXPECT_THAT(parse_error("<system>\n<cpu numaid=\"0\">\n<pci busid=\"7\" class=\"0x030200\"/></cpu></system>"),
              HasSubstr("line 3: busid is '7': expected a PCI address"));
  EXPECT_THAT(parse_error("<system><cpu numaid=\"0\"/></system>"), HasSubstr("no GPU below <system>"));
  std::string deep = "<system><cpu numaid=\"0\">", close;
  for (int i = 0; i < 5000; ++i) {
    deep += "<pci busid=\"0000:01:00.0\" class=\"0x060400\">";
    close += "</pci>";
  }
  EXPECT_THAT(parse_error(deep + close + "</cpu></system>"), HasSubstr("more than 32 bridges"));
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

TEST(TopologyJson, MistakesSayWhere) {
  EXPECT_THAT(parse_error("{\n\"gpus\": [\n"), HasSubstr("line 3"));
  EXPECT_THAT(parse_error("{}"), HasSubstr("expected an object with gpus and pairs"));
  EXPECT_THAT(parse_error(R"({"gpus": [{"host": 2}], "pairs": [["X"]]})"), HasSubstr("gpus[0] is of host 2"));
  EXPECT_THAT(parse_error(R"({"gpus": [{"pci": "x"}], "pairs": [["X"]]})"), HasSubstr("gpus[0]: field pci is 'x'"));
  EXPECT_THAT(parse_error(R"({"gpus": [{"sm": "x"}], "pairs": [["X"]]})"), HasSubstr("gpus[0]: field sm is \"x\""));
  EXPECT_THAT(parse_error(R"({"gpus": [{}, {}], "pairs": [["X"]]})"), HasSubstr("pairs: expected 2 rows"));
  EXPECT_THAT(parse_error(R"({"gpus": [{}], "pairs": [["NV0"]]})"), HasSubstr("pairs[0][0]"));
}

TEST(TopologyModel, FingerprintTellsMachinesApartAndNotTheirNames) {
  std::set<std::string> prints;
  for (const Machine& m : kMachines) prints.insert(fixture(m.name).fingerprint());
  EXPECT_EQ(prints.size(), std::size(kMachines));
  Topology t = fixture("dgx_h100_8"), u = t;
  u.hosts[0].name = "node17";
  u.gpus[3].uuid = "GPU-1";
  u.origin = "elsewhere";
  EXPECT_EQ(t.fingerprint(), u.fingerprint());
  u.pairs[0][1].nvlinks = 17;
  EXPECT_NE(t.fingerprint(), u.fingerprint());
}

TEST(TopologyModel, ReplicatedHostsAreJoinedByTheNetwork) {
  Topology t = replicate(fixture("perlmutter_a100_4_nv4"), 3);
  EXPECT_EQ(t.hosts.size(), 3u);
  EXPECT_EQ(t.gpus.size(), 12u);
  EXPECT_EQ(t.nics.size(), 12u);
  EXPECT_EQ(t.islands(), (Islands{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
  EXPECT_EQ(t.pair(0, 4).path, PathClass::net);
  EXPECT_DOUBLE_EQ(*t.pair(0, 4).gbps, 25);
  EXPECT_EQ(t.pair(5, 4).str(), "NV4");
  EXPECT_EQ(t.pair(4, 16).str(), "PHB") << "GPU0 of the second host and its NIC0";
  EXPECT_EQ(t.device_name(4), "host1:GPU0");
  EXPECT_EQ(to_json(parse_topology_json(to_json(t), t.origin)), to_json(t));
}

TEST(TopologyModel, AddressesAndSpeeds) {
  EXPECT_EQ(PciAddress::parse("00000000:3B:00.0")->str(), "0000:3b:00.0");
  EXPECT_EQ(PciAddress::parse("3b:1f.7")->str(), "0000:3b:1f.7");
  for (const char* wrong :
       {"", "3b", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "x:3b:00.0", "0000:3b:00.0x", "::.", "1:2:3:4.5"})
    EXPECT_FALSE(PciAddress::parse(wrong)) << wrong;
  EXPECT_DOUBLE_EQ((PcieLink{4, 16}.gbps()), 24);
  EXPECT_DOUBLE_EQ((PcieLink{5, 16}.gbps()), 48);
  EXPECT_DOUBLE_EQ((PcieLink{3, 16}.gbps()), 12);
  EXPECT_NEAR((PcieLink{1, 1}.gbps()), 0.2, 0.02);
  EXPECT_DOUBLE_EQ((PcieLink{}.gbps()), 0);
}

TEST(TopologyModel, CpuLists) {
  EXPECT_EQ(format_cpulist(*parse_cpulist("8,0-3,2")), "0-3,8");
  EXPECT_EQ(*parse_cpulist(""), std::vector<int>{});
  for (const char* wrong : {"a", "1-", "3-1", "1,,2", "1,", "-1", "0-99999999999", "1;2"})
    EXPECT_FALSE(parse_cpulist(wrong)) << wrong;
  EXPECT_EQ(common_cpus("0-7,16-23", "4-17"), "4-7,16-17");
}

}  // namespace
}  // namespace xylem
