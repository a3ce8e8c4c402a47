// SPDX-License-Identifier: Apache-2.0
// The themes of the findings; each appends what it finds.
#pragma once
#include <string>
#include <vector>

#include "distributed/topology/findings.h"

namespace xylem::detail {

using Findings = std::vector<Finding>;

void find_nvlink_problems(const Topology& t, Findings& out);
void find_peer_problems(const Topology& t, Findings& out);
void find_pcie_problems(const Topology& t, Findings& out);
void find_tree_problems(const Topology& t, Findings& out);
void find_nic_problems(const Topology& t, Findings& out);
void find_gpu_problems(const Topology& t, Findings& out);
void find_host_differences(const Topology& t, Findings& out);
void find_limit_problems(const Topology& t, const Environment& e, Findings& out);
void find_variable_problems(const Topology& t, const Environment& e, Findings& out);

std::string joined(const std::vector<std::string>& parts, const char* between = ", ");
std::string number(double v);                                           // "12", "23.6"
std::string gpu_list(const Topology& t, const std::vector<int>& gpus);  // "GPU4-7", "GPU0, GPU2"
std::vector<std::string> gpu_names(const Topology& t, const std::vector<int>& gpus);

}  // namespace xylem::detail
