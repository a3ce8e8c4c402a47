// SPDX-License-Identifier: Apache-2.0
// What collectives took on this machine: written by `xylem bench collectives --save`, overrules the cost model. Kept in
// cache_folder(), one file for each topology, NCCL version, driver and number of ranks.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "distributed/plan/plan.h"

namespace xylem {

struct MeasuredTable {
  struct Row {
    CollectiveKind kind = CollectiveKind::all_reduce;
    Algorithm algorithm = Algorithm::ring;
    int64_t bytes = 0;
    double time_us = 0;
  };
  std::string topology, nccl, driver;  // fingerprint and versions
  int ranks = 1, nodes = 1;
  std::vector<Row> rows;

  // Between two measured sizes, on straight lines through their logarithms; nothing outside of them.
  std::optional<double> time_us(CollectiveKind kind, Algorithm algorithm, double bytes) const;
  std::string to_json() const;
  static MeasuredTable from_json(const std::string& text);
};

std::string measured_file(const Topology& topology, int ranks, int nodes);
std::optional<MeasuredTable> load_measured(const Topology& topology, int ranks, int nodes);  // nothing: never measured
std::string save_measured(const MeasuredTable& table, const Topology& topology);             // returns the file

}  // namespace xylem
