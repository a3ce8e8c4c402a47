// SPDX-License-Identifier: Apache-2.0
// Damaged input: readers end with a topology or an Error, in little time, whatever the bytes. XY_FUZZ_SECONDS=60 goes
// on for so long from a seed of the clock; XY_FUZZ_SEEDS=FOLDER damages the files of a folder too.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "core/util/check.h"
#include "distributed/topology/findings.h"
#include "distributed/topology/placement.h"
#include "distributed/topology/svg.h"

namespace xylem {
namespace {

const char* const kSeeds[] = {
    "GPU 0: Tesla V100 (UUID: GPU-1)\n\t Link 0: 25.781 GB/s\n\t Link 1: <inactive>\n\n"
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X "
    "\tNV18\tPIX\t0-55,112-167\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \t\t\t\nLegend:\n  X = Self\nNIC Legend:\n  NIC0: mlx5_0\n",
    "        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity\nGPU0     X      NV4     NODE    0-15            "
    "0-1\n"
    "GPU1    NV4      X      SOC                     1\n# p2p w\n GPU0 GPU1\nGPU0 X GNS\nGPU1 OK X\n",
    "<system version=\"1\"><cpu host_hash=\"1\" numaid=\"0\" affinity=\"00ff,ffff0000\" arch=\"x86_64\" "
    "vendor=\"GenuineIntel\" "
    "familyid=\"6\" modelid=\"85\"><pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"8 GT/s\" "
    "link_width=\"16\"><pci "
    "busid=\"0000:10:1c.0\" class=\"0x030200\" device=\"0x20b0\" link_speed=\"\" link_width=\"0\"><gpu dev=\"0\" "
    "sm=\"80\"><nvlink "
    "target=\"0000:10:1d.0\" count=\"4\" tclass=\"0x030200\"/><nvlink target=\"fffffff:ff:ff.0\" count=\"2\"/><c2c "
    "bw=\"44712\" "
    "count=\"5\"/></gpu></pci><pci busid=\"0000:10:1b.0\" class=\"0x020000\"><nic><net name=\"e\" speed=\"100\" "
    "gdr=\"1\"/></nic>"
    "</pci></pci><nic><net name=\"eth0\" speed=\"1\"/></nic></cpu></system>",
};

const char* const kTokens[] = {"GPU0",
                               "GPU4095",
                               "NV18",
                               "NV0",
                               "X",
                               "\t",
                               "\n",
                               "\x1b[",
                               "CPU Affinity",
                               "0-99999999",
                               "-1",
                               "{",
                               "}",
                               "[",
                               "]",
                               "null",
                               "1e999",
                               "\"",
                               "\\",
                               "<pci ",
                               "/>",
                               "count=\"999999999\"",
                               "\0x",
                               "\xff\xfe",
                               "NUMA Affinity",
                               "host",
                               "pairs",
                               "4294967296",
                               "-2147483649"};

void survive(const std::string& text) {
  try {
    Topology t = parse_topology(text, "fuzz");
    // What is accepted must serve everybody.
    std::string json = to_json(t);
    Topology again = parse_topology_json(json, "again");
    ASSERT_EQ(to_json(again).size(), [&] {
      t.origin = "again";
      return to_json(t).size();
    }());
    auto findings = find_problems(t, {});
    if (t.devices() <= 24) {
      place_ranks(t);
      topology_svg(t, findings);
    }
  } catch (const Error& e) {
    ASSERT_FALSE(e.message().empty());
    ASSERT_EQ(e.message().find("internal error"), std::string::npos) << e.message();
  }
}

std::string mutate(std::string text, std::mt19937& random) {
  auto upto = [&](size_t n) { return n ? random() % n : 0; };
  for (int edits = 1 + int(upto(6)); edits > 0 && !text.empty(); --edits) {
    size_t at = upto(text.size()), length = 1 + upto(std::min<size_t>(40, text.size() - at));
    switch (upto(6)) {
      case 0:
        text[at] = char(random());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(upto(text.size()), length));
        break;
      case 3:
        text.insert(at, kTokens[upto(std::size(kTokens))]);
        break;
      case 4:
        text.resize(at);
        break;
      default:
        text.replace(at, std::min<size_t>(length, 3), std::to_string(int64_t(random()) - (1LL << 31)));
    }
  }
  return text;
}

TEST(TopologyFuzz, DamagedTextXmlAndJson) {
  std::vector<std::string> seeds(std::begin(kSeeds), std::end(kSeeds));
  for (const char* name :
       {"a6000_trio_nv4_pair", "h200_vm_1", "rtx5090_2_p2p_gns", "perlmutter_a100_4_nv4", "gb300_2tray_healthy"}) {
    std::ifstream in(std::string(XY_FIXTURES) + "/topologies/" + name + ".json");
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    ASSERT_FALSE(seeds.back().empty()) << name;
  }
  if (const char* folder = std::getenv("XY_FUZZ_SEEDS"))
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      std::ifstream in(file.path());
      seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  const char* longer = std::getenv("XY_FUZZ_SECONDS");
  const double seconds = longer ? std::atof(longer) : 0;
  const unsigned seed = longer ? std::random_device()() : 7;
  std::mt19937 random(seed);
  auto begin = std::chrono::steady_clock::now();
  auto lasted = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  int round = 0;
  for (; round < 6000 || lasted() < seconds; ++round) {
    std::string text = mutate(seeds[size_t(round) % seeds.size()], random);
    const double before = lasted();
    survive(text);
    EXPECT_LT(lasted() - before, 5) << text;
    if (HasFatalFailure()) FAIL() << "seed " << seed << ", round " << round << ":\n" << text;
  }
  if (longer) std::printf("%d rounds over %zu files\n", round, seeds.size());
  for (size_t n : {0, 1, 7, 100, 5000}) {
    std::string noise(n, 0);
    for (char& c : noise) c = char(random());
    survive(noise);
    survive("{" + noise);
    survive("<" + noise);
  }
  EXPECT_LT(lasted(), seconds + 60);
}

TEST(TopologyFuzz, DeepAndLongInput) {
  survive(std::string(200000, '['));
  survive("{\"gpus\":" + std::string(200000, '['));
  survive(std::string(200000, '\t'));
  survive("<system>" + std::string(50000, '<'));
  std::string header;
  for (int i = 0; i < 2000; ++i) header += "\tGPU" + std::to_string(i);
  survive(header + "\nGPU0\tX\n");
}

}  // namespace
}  // namespace xylem
