// SPDX-License-Identifier: Apache-2.0
// Hamiltonian rings through GPUs joined by links of limited capacity.
#pragma once
#include <vector>

namespace xylem {

using Matrix = std::vector<std::vector<double>>;

// Capacities in GB/s of one direction.
struct RingProblem {
  Matrix nvlink;             // [i][j], 0: no link
  std::vector<double> pcie;  // of each GPU, in and out; 0: PCIe is not used
  std::vector<int> socket;   // of each GPU
  double between_sockets = 0;
  Matrix pcie_factor;  // [i][j]: what a hop over PCIe costs relative to what it carries; 0: no way
};

struct Rings {
  double step = 0;                       // GB/s of each
  std::vector<std::vector<int>> orders;  // each starts at GPU 0
  double total() const { return step * double(orders.size()); }
  bool nvlink = true;  // no hop uses PCIe
};

// The most bandwidth over all steps of `ladder` (descending), at the highest step that reaches it.
Rings search_rings(const RingProblem& problem, const std::vector<double>& ladder, int most);

}  // namespace xylem
