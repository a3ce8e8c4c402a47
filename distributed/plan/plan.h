// SPDX-License-Identifier: Apache-2.0
// Plan: which algorithm each collective uses at each size, with the predicted time and the reason. Made from a Topology
// by the cost model (docs/plan.md), overruled by measurements; computed on rank 0 and the same on every rank.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "distributed/topology/topology.h"

namespace xylem {

enum class CollectiveKind { broadcast, reduce, all_gather, reduce_scatter, all_reduce };   // NCCL's numbers
enum class Algorithm { tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat };  // NCCL's numbers
enum class Protocol { ll, ll128, simple };                                                 // NCCL's numbers
const char* name_of(CollectiveKind k);
const char* name_of(Algorithm a);
const char* name_of(Protocol p);

// The plan for sizes from_bytes <= bytes < to_bytes (to_bytes = INT64_MAX: no end). `bytes` is what NCCL counts: the
// larger of what a rank sends and receives.
struct PlanEntry {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int64_t from_bytes = 0, to_bytes = INT64_MAX;
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  int channels = 0;       // 0: left to NCCL
  double time_us = 0;     // predicted at the geometric middle of the range
  double busbw_gbps = 0;  // there
  bool measured = false;  // from a measured table
  bool clear = true;      // false: another choice is within 20 %
  std::string reason;     // in words
};

struct PlanOptions {
  int ranks = 0;                   // 0: one per GPU of the topology
  std::string algorithm = "auto";  // auto, ring or tree
  bool deterministic = false;      // pinned algorithm, protocol and channels: equal results from run to run
};

struct Plan {
  std::vector<PlanEntry> entries;  // by kind, then size
  int ranks = 1, nodes = 1;
  std::string topology;                                             // fingerprint
  const PlanEntry* find(CollectiveKind kind, int64_t bytes) const;  // nullptr: leave it to the library
  std::string explain(CollectiveKind kind) const;                   // a table with the crossovers and reasons
  std::string to_json() const;
  static Plan from_json(const std::string& text);
  std::string hash() const;
};

Plan make_plan(const Topology& topology, const PlanOptions& options = {});

}  // namespace xylem
