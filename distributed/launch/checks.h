// SPDX-License-Identifier: Apache-2.0
// What is compared between the ranks before the first collective: everything that NCCL or MPI would answer with a hang,
// a crash, wrong results or an unexplained error. Each check looks at what the ranks said (RankInfo) and nothing else.
#pragma once
#include <string>
#include <vector>

#include "distributed/launch/rank_info.h"

namespace xylem {

struct LaunchProblem {
  bool fatal = false;  // the job must not start
  std::string text;    // what, with the values, and the remedy
};
using LaunchProblems = std::vector<LaunchProblem>;

LaunchProblems check_launch(const std::vector<RankInfo>& ranks);  // all of the following

LaunchProblems check_same_job(const std::vector<RankInfo>& ranks);  // program, arguments, configuration, versions
LaunchProblems check_gpus(const std::vector<RankInfo>& ranks);      // two ranks on one, too few, unlike each other
LaunchProblems check_cpus(const std::vector<RankInfo>& ranks);      // masks and threads
LaunchProblems check_memory(const std::vector<RankInfo>& ranks);    // /dev/shm, locked memory
LaunchProblems check_hosts(const std::vector<RankInfo>& ranks);     // uneven numbers of ranks
// NCCL_ALGO, NCCL_PROTO, NCCL_SOCKET_IFNAME and the subnets of the hosts. Fatal where GPUs are used.
LaunchProblems check_nccl_variables(const std::vector<RankInfo>& ranks);
LaunchProblems check_network(const std::vector<RankInfo>& ranks);

// Of NCCL_SOCKET_IFNAME: a list of prefixes; "^" leaves those out, "=" wants exact names. Empty: NCCL's choice, all but
// loopback and docker.
std::vector<NetworkInterface> matching_interfaces(const std::string& specification,
                                                  const std::vector<NetworkInterface>& interfaces);
std::string subnet_of(const NetworkInterface& i);  // "10.1.0.0/16"

}  // namespace xylem
