// SPDX-License-Identifier: Apache-2.0
// `xylem topo` and `xylem doctor` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace xylem {
namespace {

using program::xylem;
using testing::HasSubstr;

std::string machine(const std::string& name) { return std::string(XY_FIXTURES) + "/topologies/" + name + ".json"; }

TEST(TopoCli, ReportOfAMachineFromAFile) {
  Outcome o = xylem("topo --from " + machine("dgx_a100_8"));
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("8 x NVIDIA A100-SXM4-40GB, 1 NVSwitch, 12 NICs, 4 NUMA nodes"));
  EXPECT_THAT(o.text, HasSubstr("GPU0   X     NV12"));
  EXPECT_THAT(o.text, HasSubstr("48-63,176-191    3"));
  EXPECT_THAT(o.text, HasSubstr("NVLink islands\n  GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7\n"));
  EXPECT_THAT(o.text, HasSubstr("rank 0: GPU0, NUMA 3, CPUs 48-55,176-183, NIC0"));
  EXPECT_THAT(o.text, HasSubstr("findings\n  none"));
}

TEST(TopoCli, ErrorsAmongTheFindingsAreAnExitCode) {
  Outcome o = xylem("topo --from " + machine("b200_8_one_gpu_no_nvlink"));
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, HasSubstr("error NVLINK_GPU_ALONE (GPU2)"));
  EXPECT_EQ(xylem("topo --from " + machine("h200_vm_flat_8")).code, 0) << "warnings are none";
}

TEST(TopoCli, Json) {
  Outcome o = xylem("topo --json --from " + machine("b200_8_one_gpu_no_nvlink"));
  EXPECT_EQ(o.code, 1);
  auto j = nlohmann::json::parse(o.text);
  EXPECT_EQ(j["gpus"].size(), 8u);
  EXPECT_EQ(j["pairs"][0][1], "NV18");
  EXPECT_EQ(j["islands"], (nlohmann::json{{0, 1, 3, 4, 5, 6, 7}, {2}}));
  EXPECT_EQ(j["fingerprint"].get<std::string>().size(), 16u);
  const auto& f = j["findings"][0];
  EXPECT_EQ(f["code"], "NVLINK_GPU_ALONE");
  EXPECT_EQ(f["severity"], "error");
  EXPECT_EQ(f["subjects"], nlohmann::json{"GPU2"});
  for (const char* key : {"what", "evidence", "impact", "remedy"})
    EXPECT_FALSE(f[key].get<std::string>().empty()) << key;
}

TEST(TopoCli, PlanForSeveralNodes) {
  auto plan = [](const std::string& options) {
    Outcome o = xylem("topo --json " + options + " --from " + machine("dgx_h100_8"));
    EXPECT_EQ(o.code, 0) << o.text;
    return nlohmann::json::parse(o.text)["plan"];
  };
  auto one = plan(""), four = plan("--nodes 4");
  EXPECT_EQ(one["ranks"], 8);
  EXPECT_EQ(four["ranks"], 32);
  EXPECT_EQ(four["nodes"], 4);
  ASSERT_FALSE(one["all_reduce"].empty());
  for (const char* key : {"from_bytes", "to_bytes", "algorithm", "protocol", "time_us", "busbw_gbps", "reason"})
    EXPECT_TRUE(one["all_reduce"][0].contains(key)) << key;
  EXPECT_THAT(xylem("topo --nodes 4 --from " + machine("dgx_h100_8")).text, HasSubstr("plan for 32 ranks on 4 nodes"));
}

TEST(TopoCli, SpeedOfNicsThatTheFileDoesNotTell) {
  const std::string two = "topo --nodes 2 --from " + machine("h100_4_nv6");
  EXPECT_THAT(xylem(two).text, HasSubstr("the speed of the NICs"));
  Outcome o = xylem(two + " --nic 400Gb/s");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("plan for 8 ranks on 2 nodes"));
  EXPECT_THAT(o.text, HasSubstr("of 50 GB/s"));
  for (const char* same : {"50GB/s", "'400 Gbit/s'", "400Gbps", "0.4Tb/s", "50000MB/s"})
    EXPECT_EQ(xylem(two + " --nic " + same).text, o.text) << same;
  o = xylem(two + " --nic 400");
  EXPECT_NE(o.code, 0);
  EXPECT_THAT(o.text,
              HasSubstr("--nic 400 says neither bits nor bytes: write --nic 400Gb/s (50 GB/s) or --nic 400GB/s"));
  for (const char* wrong : {"0Gb/s", "-4Gb/s", "400G", "400gb/s", "fast", "Gb/s", "400Gb/sec"}) {
    o = xylem(two + " --nic=" + wrong);
    EXPECT_NE(o.code, 0) << wrong;
    EXPECT_THAT(o.text, HasSubstr("--nic ")) << wrong;
  }
}

TEST(TopoCli, Drawing) {
  Scratch dir;
  EXPECT_EQ(xylem("topo --svg " + (dir / "m.svg") + " --from " + machine("dgx1v_v100_8")).code, 0);
  EXPECT_THAT(read_file(dir / "m.svg"), HasSubstr("</svg>"));
}

TEST(TopoCli, TextOfNvidiaSmi) {
  Scratch dir;
  write_file(dir / "topo.txt", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n");
  Outcome o = xylem("topo --from " + (dir / "topo.txt"));
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("GPU1  NV4   X     0-7"));
}

TEST(TopoCli, Mistakes) {
  Scratch dir;
  write_file(dir / "bad.txt", "\tGPU0\tGPU1\nGPU0\t X \tNODENODE\n");
  Outcome o = xylem("topo --from " + (dir / "bad.txt"));
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.text, HasSubstr("bad.txt, line 2: row GPU0, column GPU1 holds 'NODENODE'"));
  EXPECT_THAT(xylem("topo --from none.txt").text, HasSubstr("cannot read 'none.txt': No such file"));
  EXPECT_NE(xylem("topo --nodes 0").code, 0);
}

TEST(TopoCli, ThisMachine) {
  Outcome o = xylem("topo --json");
  auto j = nlohmann::json::parse(o.text);
  EXPECT_EQ(j["source"], "live");
  EXPECT_EQ(j["hosts"].size(), 1u);
  EXPECT_THAT(xylem("topo").text, HasSubstr("findings"));
  EXPECT_THAT(xylem("doctor").text, HasSubstr("machine"));
  Outcome ill = shell("NCCL_ALGO=Tree " + program::path() + " doctor");
  EXPECT_EQ(ill.code, 1);
  EXPECT_THAT(ill.text, HasSubstr("error NCCL_ALGO_ALL"));
  EXPECT_THAT(ill.text, testing::Not(HasSubstr("no problems found")));
  Outcome measured = xylem("doctor --measure");
  EXPECT_THAT(measured.text, HasSubstr("measurements\n"));
  EXPECT_THAT(measured.text, testing::AnyOf(HasSubstr("GB/s"), HasSubstr("none")));
}

TEST(TopoCli, ProcessMesh) {
  Outcome o = xylem("topo --mesh data=4,tensor=2 --from " + machine("a100_pcie_pairs_8"));
  EXPECT_THAT(o.text, HasSubstr("  data 4: slowest pair SYS"));
  EXPECT_THAT(o.text, HasSubstr("  tensor 2: inside NVLink islands"));
  EXPECT_THAT(xylem("topo --mesh tensor=4 --from " + machine("a100_pcie_pairs_8")).text,
              HasSubstr("  tensor 4: slowest pair"));
  for (const char* mesh : {"tensor", "tensor=", "=2", "tensor=0", "tensor=2x", "tensor=16"}) {
    o = xylem("topo --mesh " + std::string(mesh) + " --from " + machine("a100_pcie_pairs_8"));
    EXPECT_NE(o.code, 0) << mesh;
    EXPECT_THAT(o.text,
                HasSubstr(std::string(mesh) == "tensor=16" ? "this topology has 8" : "such as data=4,tensor=2"));
  }
}

TEST(TopoCli, ModelsThatTheFileDoesNotTell) {
  Scratch dir;
  write_file(dir / "topo.txt", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-7\nGPU1\tNV18\t X \t0-7\n");
  write_file(dir / "pair.txt", "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n");
  Outcome o = xylem("topo --from " + (dir / "pair.txt"));
  EXPECT_THAT(o.text, HasSubstr("\n  models and names of the devices: not known\n"));
  EXPECT_THAT(xylem("topo --from " + (dir / "topo.txt")).text, HasSubstr("taken as H100 or H200"));
  o = xylem("topo --gpu B200 --from " + (dir / "topo.txt"));
  EXPECT_THAT(o.text, HasSubstr("2 x B200"));
  EXPECT_THAT(xylem("topo --gpu B200").text, HasSubstr("--gpu requires --from"));
  EXPECT_THAT(o.text, HasSubstr("18 NVLinks of 40.1 GB/s"));
  EXPECT_THAT(xylem("topo --from " + machine("azure_ncv4_a100_4")).text,
              HasSubstr("not known: the file does not tell where the NVLinks lead"));
}

TEST(TopoCli, KeptMeasurementsOverruleTheModel) {
  Scratch dir;
  std::filesystem::create_directories(dir / "xylem");
  const std::string command = "XDG_CACHE_HOME=" + (dir / "") + " " + program::path() + " topo --from ",
                    fingerprint =
                        nlohmann::json::parse(xylem("topo --json --from " + machine("hgx_h200_8")).text)["fingerprint"];
  nlohmann::json table = {{"topology", fingerprint}, {"nccl", ""}, {"driver", ""}, {"ranks", 8}, {"nodes", 1}};
  for (const auto& [algorithm, us] : {std::pair{"ring", 90}, {"tree", 50}})
    for (int64_t bytes : {8, 1 << 30})
      table["rows"].push_back(
          {{"collective", "all_reduce"}, {"algorithm", algorithm}, {"bytes", bytes}, {"time_us", us}});
  write_file(dir / ("xylem/collectives-" + fingerprint + "-none-none-8x1.json"), table.dump());
  EXPECT_THAT(shell(command + machine("hgx_h200_8")).text, HasSubstr("measured here; ring +80 %"));
  EXPECT_THAT(shell(command + machine("dgx_h100_8")).text, testing::Not(HasSubstr("measured here")));
}

// busbw: algbw x 2(n-1)/n for all_reduce, (n-1)/n for all_gather, 1 for broadcast (nccl-tests).
TEST(BenchCli, CollectivesOnOneRankAndTwoAndAKeptTable) {
  Scratch dir;
  const std::string bench = program::path() + " bench collectives --device cpu --sizes 1K,64K --iterations 2 ";
  Outcome o = shell(bench + "--json");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_EQ(nlohmann::json::parse(o.text)["ranks"], 1);
#ifndef XY_MPIRUN
  GTEST_SKIP() << "built without MPI";
#endif
  const std::string cache = "XDG_CACHE_HOME=" + (dir / "cache") + " ",
                    two = cache + "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " +
                          "mpirun -np 2 --oversubscribe --bind-to none " + bench;
  o = shell(two + "--save --json");
  ASSERT_EQ(o.code, 0) << o.text;
  auto j = nlohmann::json::parse(o.text);
  EXPECT_EQ(j["ranks"], 2);
  std::map<std::string, double> share{
      {"all_reduce", 1}, {"all_gather", 0.5}, {"reduce_scatter", 0.5}, {"broadcast", 1}};
  EXPECT_GE(j["rows"].size(), 12u);
  for (const auto& r : j["rows"]) {
    const double algbw = r["bytes"].get<double>() / r["time_us"].get<double>() / 1000;
    EXPECT_NEAR(r["algbw_gbps"].get<double>() / algbw, 1, 1e-6);
    EXPECT_NEAR(r["busbw_gbps"].get<double>(), algbw * share.at(r["collective"]), 1e-6 * algbw) << r;
    EXPECT_GT(r["predicted_us"].get<double>(), 0);
    EXPECT_TRUE(r["right"].get<bool>());
  }
  EXPECT_FALSE(std::filesystem::is_empty(dir / "cache/xylem"));
  o = shell(two);
  EXPECT_THAT(o.text, HasSubstr("2 ranks on 1 host, CPU tensors over MPI"));
  EXPECT_THAT(o.text, HasSubstr("<- plan, "));
}

TEST(PlanCli, LayoutsWithTimeAndMemoryByPart) {
  const std::string box = "plan --topology " + machine("dgx_h100_8") + " --nic 400Gb/s --nodes 2 ";
  Outcome o = xylem(box + "--model llama-8b --batch 64 --seq 4096");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("llama-8b, 8.03e+09 parameters, 64 sequences of 4096 tokens a step, bf16, on 16 x "));
  for (const char* word : {"hidden", "exposed", "bottleneck", "data 16, ZeRO 3", "weights", "gradients", "optimizer"})
    EXPECT_THAT(o.text, HasSubstr(word));
  auto j = nlohmann::json::parse(xylem(box + "--model resnet50 --batch 4096 --json").text);
  ASSERT_EQ(j["layouts"].size(), 4u);
  const auto& best = j["layouts"][0];
  EXPECT_EQ(best["data"], 16);
  EXPECT_GT(best["images_per_s"], 0);
  EXPECT_NEAR(best["hidden_ms"].get<double>() + best["exposed_ms"].get<double>(),
              best["communication_ms"].get<double>(), 1e-9);
}

TEST(PlanCli, SaysWhatIsWrong) {
  const std::string box = "plan --topology " + machine("dgx_h100_8");
  auto fails = [&](const std::string& options, const char* words) {
    Outcome o = xylem(box + options);
    EXPECT_NE(o.code, 0) << options;
    EXPECT_THAT(o.text, HasSubstr(words));
  };
  fails(" --model resnet50 --batch 256 --seq 8", "resnet50 has no sequences");
  fails(" --model llama-8b", "--batch is missing");
  fails(" --model llama-9b --batch 8", "llama-9b");
  fails(" --model llama-8b --batch -8", "-8 not in range 1 to");
  fails(" --model llama-8b --batch 64 --gpu Unheard", "the peak of Unheard is not known");
  fails(" --model llama-8b --batch 64 --micro-batch 3", "does not divide the 8 sequences");
}

}  // namespace
}  // namespace xylem
