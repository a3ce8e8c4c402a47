// SPDX-License-Identifier: Apache-2.0
// The ranks that train together, as a training loop sees them. Alone it costs nothing.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "distributed/group/group.h"

namespace xylem {

// How a step's samples are divided: `ranks` x `micro_batches` forward passes of `micro` samples.
struct BatchSplit {
  int64_t micro = 1, micro_batches = 1;
};

class Team {
 public:
  explicit Team(const Group& group) : group_(group) {}
  const Group& group() const { return group_; }
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool root() const { return rank() == 0; }

  // Of `global_batch` samples in passes of `micro_batch`, or as few passes as can be (0). Throws if the ranks cannot
  // share them evenly.
  BatchSplit split(int64_t global_batch, int64_t micro_batch = 0) const;
  // Random numbers for dropout: each rank's own, those of rank 0 as if it were alone.
  void seed(uint64_t seed) const;

  // Collective. Whether it is so on any rank.
  bool any(bool mine) const;
  double largest(double mine) const;
  void barrier() const;
  // Collective. Rank 0 does it; what it throws is thrown on all ranks.
  void on_root(const std::function<void()>& action) const;
  // Collective. Makes the folder on rank 0 and throws, naming the hosts, if others do not see there what rank 0 writes
  // within `patience` seconds: network file systems need some.
  void check_shared(const std::string& folder, double patience = 30) const;

 private:
  Group group_;
};

}  // namespace xylem
