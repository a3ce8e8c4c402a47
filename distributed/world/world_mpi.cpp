// SPDX-License-Identifier: Apache-2.0
// Starts MPI and asks it who is who.
#define OMPI_SKIP_MPICXX  // the C interface alone
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "core/util/check.h"
#include "distributed/world/launcher.h"

namespace xylem {
namespace {

std::string library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, text + length);
  return version.substr(0, version.find_first_of(",\n"));
}

// Open MPI answers a Slurm that does not connect it with a page about how Slurm is built, and the end of the process.
[[maybe_unused]] void want_connections(const Launcher& launcher) {
  if (launcher.name != "srun" || std::getenv("PMIX_RANK")) return;
  const std::string remedy =
      "start them with srun --mpi=pmix, or export SLURM_MPI_TYPE=pmix (srun --mpi=list shows what this Slurm has; "
      "without pmix use mpirun)";
  XY_CHECK(std::getenv("PMI_RANK"), "srun started ", launcher.size, " processes (", launcher.variable,
           ") without what MPI needs to connect them; ", remedy);
  const char* rank = std::getenv("SLURM_PROCID");
  if (rank && std::atoi(rank) == 0)
    std::cerr << "xylem: srun offers PMI2, which Open MPI takes only if it was built for it; if it ends now, " << remedy
              << "\n";
}

bool (*end_of_communication)() = [] { return true; };

// MPI_Finalize waits for all ranks, so only a process that ends in peace may call it.
void finalize() {
  int done = 0;
  MPI_Finalized(&done);
  if (done) return;
  if (end_of_communication())
    MPI_Finalize();
  else
    MPI_Abort(MPI_COMM_WORLD, 1);
}

}  // namespace

void before_finalize(bool (*end)()) { end_of_communication = end; }

void detail::start_mpi(World& w, const Launcher& launcher) {
  int initialized = 0, level = 0;
  MPI_Initialized(&initialized);
  if (initialized) {
    MPI_Query_thread(&level);
  } else {
#ifdef OPEN_MPI
    want_connections(launcher);
#endif
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    std::atexit(finalize);
  }
  XY_CHECK(level == MPI_THREAD_MULTIPLE, library(),
           initialized ? " was initialised by the program without MPI_THREAD_MULTIPLE; let xylem::world() do it"
                       : " does not offer MPI_THREAD_MULTIPLE, which Xylem needs; use a build of it that does");
  MPI_Comm_rank(MPI_COMM_WORLD, &w.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &w.size);
  w.mpi = true;
  XY_CHECK(
      w.size == launcher.size, launcher.name, " started ", launcher.size, " processes (", launcher.variable,
      "), but the MPI that Xylem is built with (", library(), ") sees ", w.size, ": ",
      launcher.name == "srun"
          ? "Slurm must connect them; try srun --mpi=pmi2 or --mpi=pmix (srun --mpi=list shows what there is), or "
            "mpirun"
          : "the launcher belongs to another MPI; use the mpirun that comes with this one, or build Xylem with the "
            "launcher's MPI");

  MPI_Comm local;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, w.rank, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &w.local_rank);
  MPI_Comm_size(local, &w.local_size);
  int lowest = w.rank;
  MPI_Bcast(&lowest, 1, MPI_INT, 0, local);
  MPI_Comm_free(&local);
  std::vector<int> hosts(w.size);
  MPI_Allgather(&lowest, 1, MPI_INT, hosts.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  w.nodes = static_cast<int>(hosts.size());
  w.node = static_cast<int>(std::lower_bound(hosts.begin(), hosts.end(), lowest) - hosts.begin());
}

}  // namespace xylem
