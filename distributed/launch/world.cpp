// SPDX-License-Identifier: Apache-2.0
#include "distributed/launch/world.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/util/check.h"
#include "distributed/launch/launcher.h"

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
