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

bool capturing(Stream stream);
bool capturing(Device device);  // whether the current stream is being captured

// What goes with every replay of a graph beside its kernels: the host's account of it.
class ReplayHook {
 public:
  virtual ~ReplayHook() = default;
  virtual void before(Stream stream) = 0;  // the launch, which goes to `stream`
  virtual void after(Stream stream) = 0;
};
// Of the graph that this thread is capturing, for the code that it captures to set; null outside of a capture.
std::shared_ptr<ReplayHook>* replay_hook();

}  // namespace xylem
