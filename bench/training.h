// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of training share: the step that is timed, and their options.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/device/allocator.h"
#include "core/device/graph.h"
#include "core/random/rng.h"
#include "core/util/determinism.h"
#include "models/optim/optimizer.h"
#include "models/zoo/model.h"
#ifdef XY_WITH_CUDA
#include <cuda_profiler_api.h>
#endif

namespace xylem::bench {

// Takes `flag` out of the arguments and says whether it was among them.
inline bool take_flag(std::vector<std::string>& words, const std::string& flag) { return std::erase(words, flag) > 0; }

// Forward pass, backward pass, clipping and optimizer on one batch that stays. With `graph` the third step is captured
// in a CUDA graph, which it and those after it launch.
class Step {
 public:
  Step(ZooModel& model, Optimizer& optimizer, const Tensor& input, const Tensor& target, bool graph)
      : model_(model),
        optimizer_(optimizer),
        input_(input),
        target_(target),
        device_(input.device()),
        graph_wanted_(graph),
        loss_(zeros({1}, f32, device_)) {
    XY_CHECK(!graph || device_.is_cuda(), "--graph needs a GPU");
  }

  void run() {
    rng::next_step();
    if (!graph_wanted_ || ++runs_ <= kEager) return compute();
    optimizer_.params().parallel().forget();
    if (!graph_.captured()) {
      allocator(device_).release_cached();  // memory of the steps before, since the graph has its own
      graph_.capture(device_, [&] { compute(); });
    }
    graph_.replay();
  }
  const Tensor& loss() const { return loss_; }  // f32 [1], of the step that ran last
  size_t graph_nodes() const { return graph_.node_count(); }

 private:
  static constexpr int kEager = 2;  // they choose algorithms and the order of the buckets

  void compute() {
    optimizer_.zero_grad();
    Tensor loss = model_.loss(input_, target_);
    loss.backward();
    loss_.copy_(loss.detach().reshape({1}));
    optimizer_.clip(1.0);
    optimizer_.step();
  }

  ZooModel& model_;
  Optimizer& optimizer_;
  Tensor input_, target_;
  Device device_;
  bool graph_wanted_;
  int runs_ = 0;
  Tensor loss_;
  CudaGraph graph_;
};

// What a profiler that was started with `--profile-from-start off` sees.
inline void profiled(Device device, const std::function<void()>& work) {
  synchronize(device);
#ifdef XY_WITH_CUDA
  if (device.is_cuda()) cudaProfilerStart();
#endif
  work();
  synchronize(device);
#ifdef XY_WITH_CUDA
  if (device.is_cuda()) cudaProfilerStop();
#endif
}

inline double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace xylem::bench
