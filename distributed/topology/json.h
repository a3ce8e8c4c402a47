// SPDX-License-Identifier: Apache-2.0
// The JSON that `xylem topo --json` prints: the topology, and what was found and planned for it.
#pragma once
#include <string>
#include <vector>

#include "distributed/topology/topology.h"

namespace xylem {

// `plan` is a JSON value ("" leaves it out). parse_topology_json() reads it back, without findings and plan.
std::string report_json(const Topology& topology, const std::vector<Finding>& findings, const std::string& plan);
std::string findings_to_json(const std::vector<Finding>& findings);
std::vector<Finding> findings_from_json(const std::string& text);

}  // namespace xylem
