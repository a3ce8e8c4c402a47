// SPDX-License-Identifier: Apache-2.0
// Plan: which algorithm each collective uses at each size, with the predicted time and the reason. Made from a Topology
// by the cost model (docs/plan.md), overruled by measurements; computed on rank 0 and the same on every rank.
//
// This folder: the cost model and the searches for rings and channels below it (cost_model, ring_search, graph_search),
// the plan they make, the table of measurements (measured) and NCCL's way to ask for it (tuner). distributed/job/plan.h
// brings a plan to all ranks.
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
std::optional<CollectiveKind> parse_collective(const std::string& name);
std::optional<Algorithm> parse_algorithm(const std::string& name);
std::optional<Protocol> parse_protocol(const std::string& name);

// The bus bandwidth of nccl-tests in GB/s: what each link carries, comparable between numbers of ranks. `bytes` is the
// larger of what a rank sends and receives.
double bus_bandwidth(CollectiveKind kind, int ranks, double bytes, double time_us);

// How firmly an entry stands. A prediction gives way to what the library knows better; the others do not.
enum class Basis { predicted, measured, pinned };
const char* name_of(Basis b);
std::optional<Basis> parse_basis(const std::string& name);

// The plan for sizes from_bytes <= bytes < to_bytes (to_bytes = INT64_MAX: no end). `bytes` is what NCCL counts: the
// larger of what a rank sends and receives.
struct PlanEntry {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int64_t from_bytes = 0, to_bytes = INT64_MAX;
  Algorithm algorithm = Algorithm::ring;
  std::optional<Protocol> protocol = {};  // none: left to NCCL
  int channels = 0;                       // 0: left to NCCL
  int64_t at_bytes = 0;                   // where time_us and busbw_gbps hold: the geometric middle of the range
  double time_us = 0, busbw_gbps = 0;
  Basis basis = Basis::predicted;
  bool clear = true;        // false: another choice is within 20 %
  std::string reason = {};  // in words
};

struct MeasuredTable;  // measured.h

struct PlanOptions {
  int ranks = 0;                            // 0: one per GPU of the topology
  std::string algorithm = "auto";           // auto, ring or tree
  bool deterministic = false;               // pinned algorithm, protocol and channels: equal results from run to run
  std::optional<double> nic_gbps = {};      // GB/s of a NIC whose speed the topology does not tell
  bool shared_gpu = false;                  // several ranks on one GPU, for tests: each counts as a host of its own
  bool cpu = false;                         // CPU tensors, whatever GPUs there are
  bool nvls = true;                         // false: NVLink multicast does not work or is turned off
  const MeasuredTable* measured = nullptr;  // overrules the model
};

struct Plan {
  std::vector<PlanEntry> entries;  // by kind, then size; none where nothing can be said
  int ranks = 1, nodes = 1;
  std::string topology;                                             // fingerprint
  std::vector<std::string> notes;                                   // what was assumed, and why there is no plan
  const PlanEntry* find(CollectiveKind kind, int64_t bytes) const;  // nullptr: leave it to the library
  std::string explain(CollectiveKind kind) const;                   // a table with the crossovers and reasons
  std::string explain() const;                                      // of all collectives, and the notes
  std::string to_json() const;
  static Plan from_json(const std::string& text);
  std::string hash() const;  // 16 hex digits of everything that is to be equal on all ranks
};

Plan make_plan(const Topology& topology, const PlanOptions& options = {});

}  // namespace xylem
