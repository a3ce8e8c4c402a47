// SPDX-License-Identifier: Apache-2.0
#include "distributed/world/world.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "core/device/device.h"
#include "core/util/check.h"
#include "distributed/world/launcher.h"

namespace xylem {

Launcher find_launcher() {
  auto count = [](const char* variable) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : 0;
  };
  // A batch script of Slurm's sees SLURM_NTASKS without being a task, so it is the step that counts; and a step of one
  // (srun --pty bash) is no job of ours.
  const int tasks = count("SLURM_STEP_NUM_TASKS");
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (int n = count(variable); n > 0) return {n == tasks && n > 1 ? "srun" : "mpirun", variable, n};
  if (tasks > 1) return {"srun", "SLURM_STEP_NUM_TASKS", tasks};
  return {};
}

std::string launcher_hint() {
  const char* tasks = std::getenv("SLURM_NTASKS");
  if (!tasks || std::atoi(tasks) < 2 || std::getenv("SLURM_STEP_NUM_TASKS") || !find_launcher().name.empty()) return "";
  return "Slurm has allocated " + std::string(tasks) +
         " tasks (SLURM_NTASKS) but this process was started alone; for all of them: srun --mpi=pmix xylem train ..., "
         "or xylem run -np " +
         tasks + " ...";
}

bool share_gpu() {
  static const bool on = [] {
    const char* text = std::getenv("XY_SHARE_GPU");
    return text && std::string(text) == "1";
  }();
  return on;
}

namespace {

// NCCL takes ranks with different host ids for different hosts, which may each have a GPU of the same address, and
// connects them by sockets. A build without MPI has one rank.
[[maybe_unused]] void prepare_shared_gpu(const World& w) {
  setenv("NCCL_HOSTID", ("rank" + std::to_string(w.rank)).c_str(), 1);
  static constexpr const char* settings[][2] = {
      {"NCCL_P2P_DISABLE", "1"},       {"NCCL_SHM_DISABLE", "1"},       {"NCCL_NET", "Socket"},
      {"NCCL_IB_DISABLE", "1"},        {"NCCL_SOCKET_IFNAME", "=lo"},   {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_MNNVL_ENABLE", "0"},      {"NCCL_COLLNET_ENABLE", "0"},    {"NCCL_NET_GDR_LEVEL", "LOC"},
      {"NCCL_PAT_ENABLE", "0"},        {"NCCL_MAX_CTAS", "2"},          {"NCCL_BUFFSIZE", "1048576"},
      {"NCCL_RAS_ENABLE", "0"},        {"NCCL_CUMEM_HOST_ENABLE", "0"}, {"NCCL_PROTO", "Simple"},
      {"CUDA_MODULE_LOADING", "EAGER"}};
  for (auto [name, value] : settings) setenv(name, value, 0);
  if (w.rank == 0)
    std::cerr << "\n*** XY_SHARE_GPU=1: all " << w.size
              << " ranks use one GPU through sockets. This is for functional tests: nothing measured here means "
                 "anything. ***\n\n";
}

}  // namespace

const World& world() {
  static const World world = [] {
    World w;
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    w.host = host;
    Launcher launcher = find_launcher();
    w.launcher = launcher.name;
    if (launcher.name.empty()) return w;
#ifdef XY_WITH_MPI
    detail::start_mpi(w, launcher);
    if (share_gpu() && w.size > 1 && built_with_cuda()) prepare_shared_gpu(w);
#else
    XY_CHECK(launcher.size == 1, launcher.name, " started ", launcher.size, " processes (", launcher.variable,
             "), but this build of Xylem has no MPI to connect them; install libopenmpi-dev and configure again with "
             "-DXY_MPI=ON");
#endif
    return w;
  }();
  return world;
}

}  // namespace xylem
