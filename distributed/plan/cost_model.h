// SPDX-License-Identifier: Apache-2.0
// What a collective costs: time = latency + bytes / bandwidth for each algorithm and protocol, with NCCL's constants
// (2.28), so that the predicted choice is the one NCCL makes. docs/plan.md has the formulas and their limits.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "distributed/plan/plan.h"

namespace xylem {

enum class GpuGeneration { volta, ampere, hopper, blackwell };
GpuGeneration generation_of(int sm);  // 90 is hopper; what is older than Volta counts as Volta

// The parallel paths through a group's GPUs on which one algorithm runs.
struct Channels {
  int count = 0;                              // 0: there are none
  double intra_gbps = 0;                      // of one channel, inside a node
  double inter_gbps = 0;                      // of one channel, between nodes
  double share = 1;                           // of the links' rate that is reached, where NCCL's own figure is too high
  bool nvlink = false;                        // every hop inside a node is over NVLink
  bool same_order = true;                     // all channels visit the GPUs in one order
  std::vector<std::vector<int>> orders = {};  // the GPUs of the first node as each searched channel visits them
  std::string limit = {};                     // what bounds them, in words
};

// All that the model needs to know of a group of GPUs. graph_search.h makes it from a Topology.
struct Fabric {
  int ranks = 1, nodes = 1;
  GpuGeneration generation = GpuGeneration::hopper;
  bool amd_cpu = false;
  bool cpu = false;          // no GPUs: processes on hosts, over MPI
  bool ll128 = false;        // paths that keep 128-byte stores whole
  double nvswitch_gbps = 0;  // of one GPU to the switches; 0: no NVSwitch between all GPUs of a node
  double nic_latency_us = 0;
  Channels ring, tree, nvls;
  std::vector<std::string> assumptions;  // in words
  std::string unknown;                   // why nothing can be predicted; "" when it can
  int ranks_per_node() const { return ranks / nodes; }
};

struct Cost {
  struct Part {
    double count, us;
    const char* what;
  };
  double base_us = 0;
  std::vector<Part> parts;  // the latency is base_us and the sum of count * us
  double gbps = 0;          // bytes / (1000 gbps) is the time in us; 0: not available
  double latency_us() const;
  std::string str() const;  // "6.6 us + 14 steps x 0.6 us, 80.6 GB/s"
};

class CostModel {
 public:
  // `nccl_exact`: NCCL's numbers to the letter, to compare with its table; otherwise NVLS bandwidth is our own, which
  // fits measurements better.
  explicit CostModel(Fabric fabric, bool nccl_exact = false);
  const Fabric& fabric() const { return fabric_; }

  const Cost& cost(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const;
  // Corrected for the size; nothing where the algorithm is not available.
  std::optional<double> time_us(CollectiveKind kind, Algorithm algorithm, Protocol protocol, double bytes) const;

  struct Choice {
    Algorithm algorithm;
    Protocol protocol;
    double time_us;
  };
  std::vector<Choice> ranked(CollectiveKind kind, double bytes) const;  // fastest first

 private:
  Cost make(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const;
  void set_latency(Cost& cost, CollectiveKind kind, Algorithm algorithm, Protocol protocol) const;
  double bandwidth(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const;
  Cost host_cost(CollectiveKind kind, Algorithm algorithm, Protocol protocol) const;
  double nvls_bus(CollectiveKind kind, Algorithm algorithm) const;

  Fabric fabric_;
  bool nccl_exact_;
  std::array<Cost, 5 * 7 * 3> costs_;
};

}  // namespace xylem
