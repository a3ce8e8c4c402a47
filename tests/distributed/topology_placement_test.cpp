// SPDX-License-Identifier: Apache-2.0
// Placement of ranks, and the drawing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/util/check.h"
#include "distributed/topology/cpulist.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/placement.h"
#include "distributed/topology/svg.h"

namespace xylem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Topology fixture(const std::string& name) {
  return load_topology(std::string(XY_FIXTURES) + "/topologies/" + name + ".json");
}

std::vector<int> gpus(const RankPlacement& p) {
  std::vector<int> list;
  for (const RankPlace& r : p.ranks) list.push_back(r.gpu);
  return list;
}

TEST(Placement, EachGpuOnce) {
  for (const char* name : {"dgx_h100_8", "dgx1v_v100_8", "a100_pcie_pairs_8", "rtx4090_8_all_sys", "dgx2_v100_16"}) {
    Topology t = fixture(name);
    RankPlacement p = place_ranks(t);
    auto list = gpus(p);
    EXPECT_EQ(std::set<int>(list.begin(), list.end()).size(), t.gpus.size()) << name;
  }
  EXPECT_TRUE(place_ranks(Topology{}).ranks.empty());
}

TEST(Placement, BridgedPairsHoldTheInnerAxis) {
  Topology t = fixture("rtx3090_4_pairs");  // bridges join 0-2 and 1-3
  RankPlacement p = place_ranks(t, {{{"data", 2}, {"tensor", 2}}, ""});
  EXPECT_THAT(gpus(p), ElementsAre(0, 2, 1, 3));
  ASSERT_EQ(p.axes.size(), 2u);
  EXPECT_EQ(p.axes[1].name, "tensor");
  EXPECT_TRUE(p.axes[1].inside_islands);
  EXPECT_EQ(p.axes[1].worst, PathClass::nvlink);
  EXPECT_FALSE(p.axes[0].inside_islands);
  EXPECT_TRUE(p.findings.empty());
}

TEST(Placement, AnInnerAxisThatNoIslandHoldsIsTold) {
  RankPlacement p = place_ranks(fixture("a100_pcie_pairs_8"), {{{"data", 2}, {"tensor", 4}}, ""});
  EXPECT_FALSE(p.axes[1].inside_islands);
  EXPECT_EQ(p.axes[1].worst, PathClass::node) << "four GPUs of one socket";
  ASSERT_FALSE(p.findings.empty());
  EXPECT_EQ(p.findings[0].code, "GROUP_SPANS_ISLANDS");
}

TEST(Placement, TheCubeMeshGivesDoubleLinksToPairsAndARing) {
  Topology t = fixture("dgx1v_v100_8");
  auto pairs = gpus(place_ranks(t, {{{"data", 4}, {"tensor", 2}}, ""}));
  for (size_t i = 0; i < 8; i += 2) {
    EXPECT_EQ(t.pair(pairs[i], pairs[i + 1]).nvlinks, 2) << i;
  }
  auto ring = gpus(place_ranks(t));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_GT(t.pair(ring[i], ring[(i + 1) % 8]).nvlinks, 0) << "hop " << i;
  }
  auto quads = place_ranks(t, {{{"data", 2}, {"tensor", 4}}, ""});
  EXPECT_EQ(quads.axes[1].worst, PathClass::nvlink);
}

TEST(Placement, SocketsAreKeptTogetherWhereTheClassesSayNothing) {
  Topology t = fixture("rtx4090_8_all_sys");
  auto order = gpus(place_ranks(t, {{{"data", 2}, {"tensor", 4}}, ""}));
  for (int r = 0; r < 8; ++r)
    EXPECT_EQ(t.gpus[size_t(order[size_t(r)])].numa, t.gpus[size_t(order[size_t(r / 4 * 4)])].numa);
  Topology s = fixture("rtx4090_8_pcie_switches");
  auto p = place_ranks(s, {{{"data", 2}, {"tensor", 4}}, ""});
  EXPECT_EQ(p.axes[1].worst, PathClass::pix);
  EXPECT_DOUBLE_EQ(*p.axes[1].gbps, 24);
}

TEST(Placement, ReversedNumaOrderAndNearestNics) {
  Topology t = fixture("perlmutter_a100_4_nv4");
  RankPlacement p = place_ranks(t);
  for (const RankPlace& r : p.ranks) {
    ASSERT_TRUE(r.nic);
    EXPECT_EQ(r.numa, 3 - r.gpu);
    EXPECT_EQ(t.pair(r.gpu, 4 + *r.nic).path, PathClass::phb);
    EXPECT_EQ(r.cpus, t.gpus[size_t(r.gpu)].cpus) << "alone on its node";
  }
  Topology v = fixture("h100_vm_8");  // GPU0 is nearest to NIC8
  for (const RankPlace& r : place_ranks(v).ranks) {
    EXPECT_EQ(r.nic, 8 - r.gpu);
  }
}

TEST(Placement, OfSeveralNicsAtUnknownDistanceNoneIsNearest) {
  Topology t = fixture("dgx2_v100_16");  // its table ends at GPU4
  for (const RankPlace& r : place_ranks(t).ranks) EXPECT_EQ(r.nic.has_value(), r.gpu <= 4) << r.gpu;
  for (const RankPlace& r : place_ranks(fixture("hgx_h200_8")).ranks) EXPECT_EQ(r.nic, 0) << "the only one";
}

TEST(Placement, NeighboursShareCpusAndNics) {
  Topology t = fixture("dgx_a100_8");
  RankPlacement p = place_ranks(t);
  std::set<int> nics;
  std::set<int> used;
  for (const RankPlace& r : p.ranks) {
    nics.insert(*r.nic);
    EXPECT_EQ(t.pair(r.gpu, 8 + *r.nic).path, PathClass::pxb);
    auto cpus = *parse_cpulist(r.cpus);
    EXPECT_EQ(cpus.size(), 16u);
    for (int c : cpus) {
      EXPECT_TRUE(used.insert(c).second) << c << " twice";
    }
  }
  EXPECT_EQ(nics.size(), 8u) << "each rank has its own";
  auto zero = std::find_if(p.ranks.begin(), p.ranks.end(), [](auto& r) { return r.gpu == 0; });
  EXPECT_EQ(zero->cpus, "48-55,176-183") << "cores with their second threads";
}

TEST(Placement, CpusOutsideTheJobAreNotGiven) {
  RankPlacement p = place_ranks(fixture("dgx_h100_8"), {{}, "0-7,56-57"});
  for (const RankPlace& r : p.ranks) {
    EXPECT_FALSE(r.cpus.empty()) << r.gpu;
    EXPECT_EQ(common_cpus(r.cpus, "0-7,56-57"), r.cpus);
  }
}

TEST(Placement, InnerAxesStayOnAHost) {
  Topology t = replicate(fixture("dgx_h100_8"), 2);
  RankPlacement p = place_ranks(t, {{{"data", 4}, {"tensor", 4}}, ""});
  EXPECT_TRUE(p.axes[1].inside_islands);
  EXPECT_EQ(p.axes[0].worst, PathClass::net);
  auto order = gpus(p);
  for (size_t r = 0; r < 16; ++r) {
    EXPECT_EQ(t.gpus[size_t(order[r])].host, int(r / 8)) << "hosts one after the other";
  }
}

TEST(Placement, FewerRanksTakeTheBestGpus) {
  auto order = gpus(place_ranks(fixture("b200_8_one_gpu_no_nvlink"), {{{"world", 4}}, ""}));
  EXPECT_EQ(order.size(), 4u);
  EXPECT_EQ(std::count(order.begin(), order.end(), 2), 0) << "not the one without NVLink";
  EXPECT_THROW(place_ranks(fixture("h200_vm_1"), {{{"data", 2}}, ""}), Error);
}

// ---- the drawing ----------------------------------------------------------------------------------------------------

// Tags are balanced, attributes quoted, text escaped.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  size_t at = 0;
  ASSERT_TRUE(svg.starts_with("<?xml"));
  at = svg.find("?>") + 2;
  while (at < svg.size()) {
    if (svg[at] != '<') {
      ASSERT_NE(svg[at], '>');
      if (svg[at] == '&') {
        ASSERT_LT(svg.find(';', at) - at, 6u);
      }
      ++at;
      continue;
    }
    size_t end = at + 1;
    for (bool quoted = false; end < svg.size() && (quoted || svg[end] != '>'); ++end) {
      if (svg[end] == '"') quoted = !quoted;
      ASSERT_NE(svg[end], '<');
    }
    ASSERT_LT(end, svg.size());
    std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  ASSERT_TRUE(open.empty());
}

TEST(TopologySvg, IsWellFormedForEveryMachine) {
  for (const char* name : {"dgx_h100_8", "dgx1v_v100_8", "a100_pcie_pairs_8", "rtx4090_8_pcie_switches", "h200_vm_1",
                           "b200_8_one_gpu_no_nvlink", "gb300_2tray_one_gpu_no_nvlink", "dgx2_v100_16", "dgx_a100_8"}) {
    SCOPED_TRACE(name);
    Topology t = fixture(name);
    t.gpus[0].name += " <\"&'>\n";
    t.origin = "a<b>&\"c\"";
    std::string svg = topology_svg(t, find_problems(t, {}));
    expect_well_formed(svg);
    for (int d = 0; d < t.devices(); ++d) {
      std::string device = t.device_name(d);
      EXPECT_THAT(svg, HasSubstr(">" + device.substr(device.find(':') + 1) + "<"));
    }
  }
  expect_well_formed(topology_svg(replicate(fixture("dgx_h100_8"), 9), {}));
  Topology nothing;
  nothing.hosts.emplace_back();
  expect_well_formed(topology_svg(nothing, {}));
}

TEST(TopologySvg, NarrowNodesShowAllTheirCpus) {
  Topology t = fixture("perlmutter_a100_4_nv4");
  std::string svg = topology_svg(t, {});
  for (const NumaNode& n : t.numa) EXPECT_THAT(svg, testing::HasSubstr("CPUs " + n.cpus + "<")) << n.id;
}

TEST(TopologySvg, MarksWhatIsBroken) {
  Topology sick = fixture("b200_8_one_gpu_no_nvlink"), well = fixture("hgx_b200_8");
  std::string red = topology_svg(sick, find_problems(sick, {})), plain = topology_svg(well, find_problems(well, {}));
  auto dashed = [](const std::string& svg) {
    int n = 0;
    for (size_t at = 0; (at = svg.find("stroke-dasharray", at)) != std::string::npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(dashed(plain), 1) << "the legend";
  EXPECT_EQ(dashed(red), 3) << "GPU2, its missing link, and the legend";
  EXPECT_THAT(red, HasSubstr("NVLINK_GPU_ALONE"));
}

}  // namespace
}  // namespace xylem
