// SPDX-License-Identifier: Apache-2.0
// Placement: which GPU, CPUs and NIC each rank of a job should have, so that the inner axes of its mesh stay inside
// NVLink islands and neighbours in a ring are near each other.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "distributed/topology/topology.h"

namespace xylem {

struct RankPlace {
  int gpu = 0;  // in Topology::gpus
  std::optional<int> numa;
  std::string cpus;        // this rank's share of the CPUs near its GPU; "" unknown
  std::optional<int> nic;  // in Topology::nics: the nearest, or an idle one below the same switch
};

struct AxisReport {
  std::string name;
  int size = 1;
  bool inside_islands = false;  // no group of this axis leaves its NVLink island
  PathClass worst = PathClass::self;
  std::optional<double> gbps;  // of the slowest pair in a group of this axis
};

struct RankPlacement {
  std::vector<RankPlace> ranks;               // rank r runs on ranks[r].gpu
  std::vector<AxisReport> axes;               // as asked, outermost first
  std::vector<Finding> findings;              // groups that leave their island, ranks far from every NIC
  std::string text(const Topology& t) const;  // for a terminal
};

struct PlacementOptions {
  // Axes of the mesh with their sizes, outermost first: {{"data", 4}, {"tensor", 2}}. The product is the number of
  // ranks, at most one for each GPU. Empty: all GPUs in one axis.
  std::vector<std::pair<std::string, int>> axes;
  std::string allowed_cpus;  // of the job, a cpulist; "": all
};

RankPlacement place_ranks(const Topology& topology, const PlacementOptions& options = {});

}  // namespace xylem
