// SPDX-License-Identifier: Apache-2.0
#include "distributed/job/machine.h"

#include <algorithm>
#include <set>

#include "distributed/topology/detect.h"
#include "distributed/topology/json.h"
#include "distributed/world/world.h"

namespace xylem {

JobTopology gather_topology(const Group& group) {
  // One process of each host looks; all learn what was seen. Node, topology, findings: three rounds of strings.
  int node = world().node;
  std::vector<int64_t> nodes = group.gather_integers(node);
  bool leader = std::find(nodes.begin(), nodes.end(), node) - nodes.begin() == group.rank();
  std::string seen, found;
  if (leader) {
    Detection d = detect();
    d.environment.ranks_on_host = int(std::count(nodes.begin(), nodes.end(), node));
    d.environment.hosts_of_job = int(std::set<int64_t>(nodes.begin(), nodes.end()).size());
    seen = to_json(d.topology);
    found = findings_to_json(find_environment_problems(d.topology, d.environment));
  }
  std::vector<std::string> topologies = group.gather_strings(seen), findings = group.gather_strings(found);
  std::vector<Topology> hosts;
  std::vector<int> ranks;
  JobTopology job;
  for (size_t r = 0; r < topologies.size(); ++r)
    if (!topologies[r].empty()) {
      hosts.push_back(parse_topology_json(topologies[r], "rank " + std::to_string(r)));
      ranks.push_back(int(std::count(nodes.begin(), nodes.end(), nodes[r])));
    }
  job.topology = join_hosts(hosts);
  job.findings = find_topology_problems(job.topology);
  int h = 0;
  for (size_t r = 0; r < findings.size(); ++r) {
    if (findings[r].empty()) continue;
    for (Finding f : findings_from_json(findings[r])) {
      if (hosts.size() > 1) {
        for (std::string& s : f.subjects) s = job.topology.host_name(h) + ":" + s;
        if (f.subjects.empty()) f.subjects.push_back(job.topology.host_name(h));
      }
      job.findings.push_back(f);
    }
    ++h;
  }
  for (const Finding& f : find_rank_problems(ranks)) job.findings.push_back(f);
  sort_findings(job.findings);
  return job;
}

Topology job_machine(const Group& world, Device device) {
  if (!device.is_cuda()) {
    Topology hosts;
    hosts.hosts.resize(size_t(xylem::world().nodes));
    for (HostInfo& h : hosts.hosts) h.nccl = "mpi";
    return hosts;
  }
  return gather_topology(world).topology;
}

}  // namespace xylem
