// SPDX-License-Identifier: Apache-2.0
// Which launcher started the process, as the environment tells; and what happens when it tells something else than MPI.
#include "distributed/world/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "core/util/check.h"
#include "distributed/group/group.h"

namespace xylem {
namespace {

const char* kVariables[] = {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK",
                            "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};

class LauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* v : kVariables) unsetenv(v);
  }
  void TearDown() override { SetUp(); }
};

TEST_F(LauncherTest, NoneIsFoundWithoutOne) {
  setenv("SLURM_NTASKS", "8", 1);  // a batch script, which is no task
  EXPECT_EQ(find_launcher().name, "");
  EXPECT_EQ(find_launcher().size, 1);
  setenv("SLURM_STEP_NUM_TASKS", "1", 1);  // srun --pty bash
  EXPECT_EQ(find_launcher().name, "");
}

TEST_F(LauncherTest, EachIsFound) {
  setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  EXPECT_EQ(find_launcher().name, "srun");
  EXPECT_EQ(find_launcher().size, 4);
  setenv("PMI_SIZE", "4", 1);  // srun --mpi=pmi2
  EXPECT_EQ(find_launcher().name, "srun");
  setenv("PMI_SIZE", "16", 1);  // a mpirun that starts its agents with srun
  EXPECT_EQ(find_launcher().name, "mpirun");
  EXPECT_EQ(find_launcher().size, 16);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);  // mpirun inside a Slurm step
  EXPECT_EQ(find_launcher().variable, "OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(find_launcher().size, 2);
}

TEST_F(LauncherTest, TasksThatWereAllocatedButNotStartedAreHintedAt) {
  EXPECT_EQ(launcher_hint(), "");
  setenv("SLURM_NTASKS", "1", 1);
  EXPECT_EQ(launcher_hint(), "");
  setenv("SLURM_NTASKS", "8", 1);
  EXPECT_THAT(launcher_hint(), testing::AllOf(testing::HasSubstr("8 tasks"), testing::HasSubstr("srun --mpi=pmix"),
                                              testing::HasSubstr("xylem run -np 8")));
  setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
  EXPECT_EQ(launcher_hint(), "");
}

TEST_F(LauncherTest, WithoutALauncherTheWorldIsThisProcess) {
  EXPECT_EQ(world().size, 1);
  EXPECT_EQ(world().local_size, 1);
  EXPECT_FALSE(world().mpi);
  Group group = Group::world();
  EXPECT_EQ(group.size(), 1);
  Tensor x = full({3}, 2);
  group.all_reduce(x, ReduceOp::avg).wait();
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{2, 2, 2}));
  EXPECT_EQ(group.gather_strings("me"), std::vector<std::string>{"me"});
  group.barrier();
  EXPECT_EQ(group.split(3, 0, "part").world_ranks(), std::vector<int>{0});
}

using LauncherDeathTest = LauncherTest;

TEST_F(LauncherDeathTest, ALauncherThatMpiDoesNotKnowIsExplained) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto start = [](const char* variable) {
    setenv(variable, "4", 1);
    try {
      world();
    } catch (const Error& e) {
      std::cerr << e.what() << '\n';
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(start("PMI_SIZE"), testing::ExitedWithCode(3), "mpirun started 4 processes \\(PMI_SIZE\\), but ");
  EXPECT_EXIT(start("SLURM_STEP_NUM_TASKS"), testing::ExitedWithCode(3),
              "srun started 4 processes.*(srun --mpi=pmix|build of Xylem has no MPI)");
}

}  // namespace
}  // namespace xylem
