// SPDX-License-Identifier: Apache-2.0
// Finishes the checkpoint that processes were writing when they were killed: from the files that were written already
// and from the copies that the processes have left in shared memory (snapshot.h).
#pragma once
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"

namespace xylem::checkpoint {

// Collective. What was found and became of it, for the log; the same on all ranks. Also removes the copies that
// serve nobody any more, those of other runs on this host included.
std::vector<std::string> recover(const std::string& dir, const Peers& peers);

}  // namespace xylem::checkpoint
