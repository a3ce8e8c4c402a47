// SPDX-License-Identifier: Apache-2.0
// One training step: forward and backward passes over the micro-batches, the reduction of their gradients, clipping,
// the optimizer, the moving average.
//
// Note [Captured step]: on a GPU all of it but the average can be captured in a CUDA graph, which the steps after it
// launch as a whole. What differs from step to step lies in device memory that the graph reads: the batches are copied
// into tensors that stay, the learning rate, the count of steps, the step of the random numbers and the loss scale have
// their own already. The weights are those of steps that were not captured, bit by bit. The average stays outside, for
// its decay is a number that the host hands over.
#pragma once
#include <functional>
#include <vector>

#include "core/device/graph.h"
#include "core/util/rng.h"
#include "data/loader.h"
#include "models/optim/ema.h"
#include "models/optim/optimizer.h"
#include "models/train/config.h"
#include "models/zoo/zoo.h"

namespace xylem {

class TrainStep {
 public:
  struct Parts {
    ZooModel& model;
    Optimizer& optimizer;
    Ema* ema = nullptr;
    LossScaler* scaler = nullptr;
  };
  TrainStep(const Parts& parts, const TrainConfig& config, DType dtype, int64_t micro_batches);

  // Step `number`, counted from 1, on so many batches of `next` as it has micro-batches.
  void run(int64_t number, const std::function<Batch()>& next);

  // Of the step that ran last, f32 [1] on the device: the loss, and the norm of the gradients before clipping.
  const Tensor& loss() const { return loss_; }
  const Tensor& norm() const { return norm_; }
  double forward_flops() const { return forward_flops_; }  // of a step on this rank; known after the first
  bool captures() const { return captures_; }              // as configured, and possible: on a GPU
  const CudaGraph& graph() const { return graph_; }

 private:
  using Batches = std::function<Batch(int64_t)>;
  void compute(int64_t number, const Batches& batch);
  void replay(int64_t number, const std::function<Batch()>& next);
  Tensor forward_backward(const Batch& batch, double weight);
  void stop_at_nan(int64_t number, const std::vector<Batch>& batches, const RngState& random);
  Tensor input_of(const Batch& batch) const;

  Parts parts_;
  Device device_;
  DType dtype_;
  int64_t micro_batches_;
  double clip_, label_smoothing_;
  bool debug_nan_, captures_;
  int64_t runs_ = 0;
  double forward_flops_ = 0;
  Tensor loss_, norm_;
  std::vector<Batch> batches_;  // that the graph reads
  uint32_t draws_ = 0;          // random operations in it
  std::vector<bool> trained_;   // which parameters it trains
  CudaGraph graph_;
};

}  // namespace xylem
