// SPDX-License-Identifier: Apache-2.0
// What this process is in its job. Under mpirun or srun MPI is initialised at the first question; without a launcher
// the world is this one process, and MPI stays untouched.
#pragma once
#include <string>

namespace xylem {

struct World {
  int rank = 0, size = 1;              // in the job
  int local_rank = 0, local_size = 1;  // among the processes of this host (shared memory decides, not names)
  int node = 0, nodes = 1;             // hosts, numbered by their lowest rank
  std::string host;
  std::string launcher;  // "mpirun", "srun" or "": none
  bool mpi = false;      // initialised
};

// Throws if the launcher started several processes but this build has no MPI.
const World& world();

}  // namespace xylem
