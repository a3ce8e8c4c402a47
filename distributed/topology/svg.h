// SPDX-License-Identifier: Apache-2.0
// A drawing of the machine: GPUs by NUMA node, switches, links coloured by class, what is broken in red.
#pragma once
#include <string>
#include <vector>

#include "distributed/topology/topology.h"

namespace xylem {

// A whole SVG document. Of a job with many hosts the first four are drawn.
std::string topology_svg(const Topology& topology, const std::vector<Finding>& findings);

}  // namespace xylem
