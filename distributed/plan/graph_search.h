// SPDX-License-Identifier: Apache-2.0
// Finds the parallel rings, and what follows from them, through the GPUs of a topology: how many channels there are and
// what each carries. The same question as NCCL's graph search, answered by capacities: switches by division, NVLink
// meshes and PCIe trees by backtracking over Hamiltonian rings. docs/plan.md says where the two can differ.
#pragma once
#include "distributed/plan/cost_model.h"

namespace xylem {

// For the first options.ranks GPUs (all, if 0). What is not known is assumed with a word in `assumptions`, or, where an
// assumption would be a guess at the answer, said in `unknown`.
Fabric search_fabric(const Topology& topology, const PlanOptions& options = {});

}  // namespace xylem
