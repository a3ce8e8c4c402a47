// SPDX-License-Identifier: Apache-2.0
// CUDA graphs: a step is captured once and replayed with one launch. Nothing inside may synchronise.
#pragma once
#include <functional>
#include <memory>

#include "core/device/device.h"

namespace xylem {

class CudaGraph {
 public:
  CudaGraph();
  ~CudaGraph();
  // Calls `step` once; what it launches is recorded, not run. Tensors it allocates live in the graph's own pool until
  // the graph dies.
  void capture(Device device, const std::function<void()>& step);
  void replay();
  bool captured() const;
  size_t node_count() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

bool capturing(Device device);  // whether the current stream is being captured

}  // namespace xylem
