// SPDX-License-Identifier: Apache-2.0
// What the watchdog and the plan do to collectives. Not for users.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "distributed/plan/plan.h"

namespace xylem::collectives {

// Every collective under way or called later throws an Error with this reason; NCCL's kernels are ended. May be called
// from any thread and more than once; the first reason stays. The process can only say goodbye after it: at its exit
// it ends the whole job with MPI_Abort, since MPI_Finalize would wait for ranks that never come.
void abort_all(const std::string& reason);
bool aborted();
std::string abort_reason();

// The error that NCCL met in the background, naming the group; "" if none.
std::string async_error();

// Which algorithm the MPI backend uses for messages of so many bytes (the larger of what a rank sends and receives);
// nullptr: the default, a tree below 64 KiB and a ring above. A tree of a reduction holds all operands at its root and
// gives way to a ring where those are more than 16 MiB. Sums are taken in the order of the ranks whatever the
// algorithm, so the choice never changes a result. Call it on all ranks alike, with no collective under way.
using Choice = std::function<Algorithm(int64_t bytes, int ranks)>;
void set_algorithm(CollectiveKind kind, Choice choice);
Algorithm algorithm_for(CollectiveKind kind, int64_t bytes, int ranks);

// The longest single message in bytes; MPI counts in int. Tests lower it.
extern int64_t message_limit;

// Ends the communication threads. False if a collective was still under way, or after an abort.
bool stop();

}  // namespace xylem::collectives
