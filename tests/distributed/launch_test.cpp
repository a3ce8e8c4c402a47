// SPDX-License-Identifier: Apache-2.0
// The comparison of ranks before the first collective, binding, and the verdict after a hang: all of it on made-up
// ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/util/check.h"
#include "distributed/launch/bind.h"
#include "distributed/launch/checks.h"
#include "distributed/launch/rank_info.h"
#include "distributed/launch/run.h"
#include "distributed/topology/cpulist.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Two hosts of `per_host` ranks on as many GPUs that have nothing wrong.
std::vector<RankInfo> healthy(int per_host = 2, int hosts = 2) {
  std::vector<RankInfo> ranks;
  for (int h = 0; h < hosts; ++h)
    for (int l = 0; l < per_host; ++l) {
      RankInfo r;
      r.rank = h * per_host + l;
      r.local_rank = l;
      r.local_size = per_host;
      r.node = h;
      r.host = "node" + std::to_string(h);
      r.boot_id = "boot" + std::to_string(h);
      r.pid = 100 + r.rank;
      r.device = "cuda:" + std::to_string(l);
      r.gpu = "NVIDIA H200";
      r.pci = "0000:" + std::to_string(10 + l) + ":00.0";
      r.gpus = per_host;
      r.numa = l;
      r.cpus = std::to_string(16 * l) + "-" + std::to_string(16 * l + 15);
      r.cpu_count = 16;
      r.cpus_of_machine = 16 * per_host;
      r.threads = 16;
      r.executable = "e0", r.arguments = "a0", r.config = "c0", r.version = "0.1.0";
      r.cuda = 13000, r.driver = 13000, r.nccl = 22809;
      r.shm_bytes = int64_t(64) << 30;
      r.interfaces = {{"lo", "127.0.0.1", 8, true},
                      {"eth0", "10.1.0." + std::to_string(h + 1), 16, false},
                      {"docker0", "172.17.0.1", 16, false}};
      ranks.push_back(r);
    }
  return ranks;
}

std::string only_problem(const std::vector<RankInfo>& ranks, bool fatal) {
  LaunchProblems p = check_launch(ranks);
  std::string text;
  for (const LaunchProblem& problem : p) text += (problem.fatal ? "fatal: " : "warning: ") + problem.text + "\n";
  EXPECT_EQ(p.size(), 1u) << text;
  if (p.size() != 1) return text;
  EXPECT_EQ(p[0].fatal, fatal) << text;
  return p[0].text;
}

TEST(LaunchChecks, NothingIsWrongWithAHealthyJob) {
  EXPECT_THAT(check_launch(healthy()), IsEmpty());
  EXPECT_THAT(check_launch(healthy(8, 1)), IsEmpty());
}

TEST(LaunchChecks, ProgramsConfigurationsAndVersionsMustBeEqual) {
  auto with = [](auto change) {
    auto ranks = healthy();
    change(ranks[3]);
    return only_problem(ranks, true);
  };
  EXPECT_THAT(with([](RankInfo& r) { r.executable = "e1"; }),
              AllOf(HasSubstr("different programs: e0 on ranks 0-2, e1 on rank 3"), HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(with([](RankInfo& r) { r.config = "c1"; }), HasSubstr("configurations: c0 on ranks 0-2, c1 on rank 3"));
  auto ranks = healthy();
  for (RankInfo& r : ranks) r.config_text = "seed = 1\n[train]\nsteps = 20\n";
  ranks[2].config = "c2", ranks[2].config_text = "seed = 1\n[train]\nsteps = 30\n";
  EXPECT_THAT(only_problem(ranks, true), HasSubstr("difference is [train] steps = 20 on rank 0, steps = 30 on rank 2"));
  ranks[2].config_text = "seed = 1\n";
  EXPECT_THAT(only_problem(ranks, true), HasSubstr("difference is [train] on rank 0, nothing on rank 2"));
  EXPECT_THAT(with([](RankInfo& r) { r.arguments = "a1"; }), HasSubstr("arguments"));
  EXPECT_THAT(with([](RankInfo& r) { r.version = "0.2.0"; }), HasSubstr("0.1.0 on ranks 0-2, 0.2.0 on rank 3"));
  EXPECT_THAT(with([](RankInfo& r) { r.nccl = 21805; }), HasSubstr("NCCL: 2.28.9 on ranks 0-2, 2.18.5 on rank 3"));
  EXPECT_THAT(with([](RankInfo& r) { r.cuda = 12040; }), HasSubstr("CUDA: 13.0 on ranks 0-2, 12.4 on rank 3"));
}

TEST(LaunchChecks, TwoRanksOnOneGpu) {
  auto ranks = healthy();
  ranks[1].pci = ranks[0].pci;
  EXPECT_THAT(only_problem(ranks, true), AllOf(HasSubstr("ranks 0 and 1 are on the same GPU, 0000:10:00.0 of node0"),
                                               HasSubstr("CUDA_VISIBLE_DEVICES"), HasSubstr("XY_SHARE_GPU=1")));
  for (RankInfo& r : ranks) r.share_gpu = true;
  EXPECT_THAT(only_problem(ranks, false), HasSubstr("never measure speed"));

  // The host has another name in each container, the kernel is the same; and the same bus id on two hosts is fine.
  ranks = healthy(1, 2);
  EXPECT_THAT(check_launch(ranks), IsEmpty());
  ranks[1].boot_id = ranks[0].boot_id;
  EXPECT_THAT(only_problem(ranks, true), HasSubstr("ranks 0 and 1"));
}

TEST(LaunchChecks, MoreRanksThanGpusOrSomeWithout) {
  auto ranks = healthy(4, 1);
  for (RankInfo& r : ranks) {
    r.gpus = 3;
    if (r.rank == 3) r.pci = ranks[0].pci;
  }
  EXPECT_THAT(only_problem(ranks, true), AllOf(HasSubstr("ranks 0 and 3"), HasSubstr("3 GPUs for 4 ranks")));
  ranks = healthy(4, 1);
  ranks[2].device = "cpu";
  ranks[2].pci = "";
  EXPECT_THAT(only_problem(ranks, true), HasSubstr("a GPU on ranks 0, 1 and 3, cpu on rank 2"));
}

TEST(LaunchChecks, StarvedCpus) {
  auto ranks = healthy(2, 1);
  for (RankInfo& r : ranks) r.cpus = "0", r.cpu_count = 1, r.threads = 1;
  ranks[1].cpus = "1";
  std::string text;
  for (const LaunchProblem& p : check_cpus(ranks)) text += p.text;
  EXPECT_THAT(text, AllOf(HasSubstr("only 1 CPU (0) of 32"), HasSubstr("--bind-to none")));
  for (RankInfo& r : ranks) r.threads = 4;
  text = "";
  for (const LaunchProblem& p : check_cpus(ranks)) text += p.text;
  EXPECT_THAT(text, AllOf(HasSubstr("4 threads share 1 CPU"), HasSubstr("OMP_NUM_THREADS=1")));

  ranks = healthy(2, 1);
  for (RankInfo& r : ranks) r.cpus = "0-15";
  EXPECT_THAT(only_problem(ranks, false),
              HasSubstr("2 ranks of node0 run 32 threads on 16 CPUs; set OMP_NUM_THREADS=8"));
  for (RankInfo& r : ranks) r.cpus = "0", r.cpu_count = r.cpus_of_machine = r.threads = 1;
  EXPECT_THAT(only_problem(ranks, false), HasSubstr("run 2 threads on 1 CPU; start fewer ranks"));
}

TEST(LaunchChecks, SharedAndLockedMemory) {
  auto ranks = healthy();
  ranks[2].shm_bytes = ranks[3].shm_bytes = 64 << 20;
  EXPECT_THAT(only_problem(ranks, false),
              AllOf(HasSubstr("ranks 2 and 3: /dev/shm of node1 has 64 MiB"), HasSubstr("--shm-size=1g")));
  ranks = healthy();
  ranks[0].memlock_bytes = 64 << 10;
  EXPECT_THAT(check_launch(ranks), IsEmpty());  // no InfiniBand
  ranks[0].infiniband = true;
  EXPECT_THAT(only_problem(ranks, false), AllOf(HasSubstr("64 KiB"), HasSubstr("--ulimit memlock=-1")));
}

TEST(LaunchChecks, UnevenHosts) {
  auto ranks = healthy();
  ranks.pop_back();
  EXPECT_THAT(only_problem(ranks, false), HasSubstr("2 on node0, 1 on node1"));
}

TEST(LaunchChecks, NcclAlgorithmsAndProtocols) {
  auto with = [](const char* variable, const std::string& value) {
    auto ranks = healthy();
    for (RankInfo& r : ranks) r.nccl_variables[variable] = value;
    LaunchProblems p = check_launch(ranks);
    return p.empty() ? std::string() : only_problem(ranks, true);
  };
  EXPECT_THAT(with("NCCL_ALGO", "Tree"),
              AllOf(HasSubstr("NCCL_ALGO=\"Tree\""), HasSubstr("NCCL_ALGO=\"allreduce:tree\"")));
  EXPECT_THAT(with("NCCL_ALGO", "^ring"), HasSubstr("without any algorithm"));
  EXPECT_THAT(with("NCCL_ALGO", "allreduce:trees"), HasSubstr("names \"trees\""));
  EXPECT_THAT(with("NCCL_ALGO", "all_reduce:tree"), HasSubstr("the function \"all_reduce\""));
  EXPECT_THAT(with("NCCL_ALGO", "ring;tree"), HasSubstr("second list"));
  EXPECT_THAT(with("NCCL_PROTO", "simpel"), HasSubstr("ll, ll128, simple"));
  for (const char* good :
       {"Ring", "ring,tree", "allreduce:tree", "ring;allreduce:Tree,Ring", "^NVLS", "^nvls,nvlstree"})
    EXPECT_EQ(with("NCCL_ALGO", good), "") << good;
  EXPECT_EQ(with("NCCL_PROTO", "Simple"), "");

  auto ranks = healthy();
  ranks[1].nccl_variables["NCCL_PROTO"] = "Simple";
  EXPECT_THAT(only_problem(ranks, true),
              HasSubstr("NCCL_PROTO differs between ranks: (unset) on ranks 0, 2 and 3, Simple on rank 1"));
  for (RankInfo& r : ranks) r.nccl_variables = {{"NCCL_HOSTID", "rank" + std::to_string(r.rank)}};
  EXPECT_THAT(check_launch(ranks), IsEmpty());
}

TEST(LaunchChecks, InterfacesOfTheHosts) {
  auto with = [](const std::string& value, bool fatal) {
    auto ranks = healthy();
    for (RankInfo& r : ranks) r.nccl_variables["NCCL_SOCKET_IFNAME"] = value;
    std::string text;
    for (const LaunchProblem& p : check_launch(ranks)) {
      EXPECT_EQ(p.fatal, fatal);
      text += p.text + "\n";
    }
    return text;
  };
  EXPECT_EQ(with("eth", true), "");
  EXPECT_EQ(with("=eth0", true), "");
  EXPECT_EQ(with("^lo,docker", true), "");
  EXPECT_THAT(with("ib", true),
              AllOf(HasSubstr("node0: NCCL_SOCKET_IFNAME=ib matches no interface"), HasSubstr("eth0 (10.1.0.1/16)")));
  EXPECT_THAT(with("=eth", true), HasSubstr("matches no interface"));
  EXPECT_THAT(with("lo", true), HasSubstr("matches only loopback"));

  auto ranks = healthy();
  for (RankInfo& r : ranks)
    if (r.node == 1) r.interfaces[1].address = "10.2.0.1";
  EXPECT_THAT(only_problem(ranks, false), AllOf(HasSubstr("share no subnet"), HasSubstr("node1: eth0 (10.2.0.1/16)")));
  EXPECT_THAT(check_launch(std::vector<RankInfo>(ranks.begin(), ranks.begin() + 2)), IsEmpty());  // one host

  EXPECT_EQ(subnet_of({"a", "10.1.2.3", 20, false}), "10.1.0.0/20");
  EXPECT_EQ(subnet_of({"a", "fd00::1234:1", 112, false}), "fd00::1234:0/112");
}

TEST(RankInfo, SurvivesTheJourney) {
  RankInfo r = healthy()[3];
  r.nic = "mlx5_1", r.bound = true, r.infiniband = true, r.memlock_bytes = 5,
  r.nccl_variables = {{"NCCL_DEBUG", "INFO"}};
  RankInfo back = parse_rank_info(to_json(r));
  EXPECT_EQ(to_json(back), to_json(r));
  EXPECT_EQ(back.numa, r.numa);
  EXPECT_EQ(back.interfaces[1].name, "eth0");
  r.numa.reset();
  EXPECT_FALSE(parse_rank_info(to_json(r)).numa.has_value());
}

TEST(RankInfo, OfThisProcess) {
  RankInfo r = describe_this_process();
  EXPECT_EQ(r.executable.size(), 16u);
  EXPECT_EQ(r.executable, describe_this_process().executable);
  EXPECT_GT(r.cpu_count, 0);
  EXPECT_FALSE(r.version.empty());
  EXPECT_THAT(r.boot_id, testing::Not(IsEmpty()));
}

TEST(RankInfo, Report) {
  auto ranks = healthy(1, 2);
  ranks[1].nic = "mlx5_0";
  ranks[0].bound = true;
  EXPECT_EQ(launch_report(ranks),
            "2 ranks on 2 hosts, Xylem 0.1.0, CUDA 13.0, NCCL 2.28.9; ranks bound to CPUs and memory by Xylem "
            "(XY_BIND=0 leaves them alone)\n"
            "  rank  host   device              PCI bus id    NUMA  CPUs  NIC     threads\n"
            "  0     node0  cuda:0 NVIDIA H200  0000:10:00.0  0     0-15  -       16\n"
            "  1     node1  cuda:0 NVIDIA H200  0000:10:00.0  0     0-15  mlx5_0  16\n");
}

TEST(Binding, Cpulists) {
  EXPECT_EQ(format_cpulist({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_THAT(*parse_cpulist("0-3,8,10-11"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_EQ(format_cpulist({}), "");
  EXPECT_THAT(*parse_cpulist(""), IsEmpty());
}

// Eight cores of two threads on two NUMA nodes: cpu c and c + 8 are one core.
std::vector<std::vector<int>> eight_cores() {
  std::vector<std::vector<int>> cores;
  for (int c = 0; c < 8; ++c) cores.push_back({c, c + 8});
  return cores;
}

TEST(Binding, RanksShareTheCoresNearTheirGpus) {
  std::vector<BindRequest> ranks(4, {"0-15", "0-3,8-11"});
  ranks[2].near = ranks[3].near = "4-7,12-15";
  EXPECT_EQ(format_cpulist(choose_cpus(ranks, 0, eight_cores())), "0-1,8-9");
  EXPECT_EQ(format_cpulist(choose_cpus(ranks, 1, eight_cores())), "2-3,10-11");
  EXPECT_EQ(format_cpulist(choose_cpus(ranks, 2, eight_cores())), "4-5,12-13");
  EXPECT_EQ(format_cpulist(choose_cpus(ranks, 3, eight_cores())), "6-7,14-15");
}

TEST(Binding, RanksWithoutGpusShareTheHost) {
  std::vector<BindRequest> ranks(3, {"0-15", ""});
  EXPECT_EQ(format_cpulist(choose_cpus(ranks, 0, eight_cores())), "0-1,8-9");
  EXPECT_EQ(format_cpulist(choose_cpus(ranks, 1, eight_cores())), "2-4,10-12");
  EXPECT_EQ(format_cpulist(choose_cpus(ranks, 2, eight_cores())), "5-7,13-15");
}

TEST(Binding, LeavesAloneWhatIsBoundOrTooSmall) {
  EXPECT_THAT(choose_cpus({{"0-15", ""}}, 0, eight_cores()), IsEmpty());
  EXPECT_THAT(choose_cpus({{"0-7", ""}, {"8-15", ""}}, 0, eight_cores()), IsEmpty());
  EXPECT_THAT(choose_cpus(std::vector<BindRequest>(9, {"0-15", ""}), 0, eight_cores()), IsEmpty());
  EXPECT_THAT(choose_cpus(std::vector<BindRequest>(2, {"0-15", ""}), 0, {}), IsEmpty());
  // A cgroup without CPUs near the GPU: its own are shared.
  std::vector<BindRequest> far(2, {"0-3,8-11", "4-7,12-15"});
  EXPECT_EQ(format_cpulist(choose_cpus(far, 1, eight_cores())), "2-3,10-11");
}

TEST(Binding, GpusFollowTheCpusOfTheRank) {
  EXPECT_THAT(assign_gpus({0, 0, 1, 1}, {-1, -1, -1, -1}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(assign_gpus({1, 1, 0, 0}, {0, 0, 1, 1}), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(assign_gpus({0, 0, 1, 1}, {1, -1}), ElementsAre(2, 0));
  EXPECT_THAT(assign_gpus({0, 0}, {1, 1}), ElementsAre(0, 1));
  EXPECT_THAT(assign_gpus({0}, {-1, -1, -1}), ElementsAre(0, 0, 0));
  EXPECT_THAT(assign_gpus({}, {-1}), ElementsAre(-1));
}

TEST(LaunchRun, AloneNeedsNoLauncher) {
  if (!world().launcher.empty()) GTEST_SKIP() << "under " << world().launcher;
  xylem::Run run({.device = "cpu"});
  EXPECT_EQ(run.size(), 1);
  EXPECT_TRUE(run.root());
  EXPECT_EQ(run.device(), Device::cpu());
  EXPECT_EQ(run.report(), "");
  EXPECT_FALSE(run.world().mpi);
  EXPECT_THROW(xylem::Run({.device = "abacus"}), Error);
}

}  // namespace
}  // namespace xylem
