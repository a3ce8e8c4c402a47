// SPDX-License-Identifier: Apache-2.0
// Who started this process, as far as the environment tells. Internal to distributed/.
#pragma once
#include <string>

#include "distributed/world/world.h"

namespace xylem {

struct Launcher {
  std::string name;      // "mpirun", "srun" or "": none
  std::string variable;  // the environment variable that says so
  int size = 1;          // processes that it started
};
Launcher find_launcher();
// What a process should be told that runs alone where a scheduler has given it company; or "".
std::string launcher_hint();

// XY_SHARE_GPU=1: several ranks use one GPU, which NCCL refuses and works around slowly; for tests alone. World sets
// NCCL's environment for it before NCCL is first called.
bool share_gpu();

// What must end before MPI does: called once at the exit of a process that joined MPI. It returns false if the process
// cannot end in peace; the job then ends with MPI_Abort, since MPI_Finalize would wait for all ranks.
void before_finalize(bool (*end)());

namespace detail {
void start_mpi(World& world, const Launcher& launcher);  // world_mpi.cpp
}

}  // namespace xylem
