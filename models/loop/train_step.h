// SPDX-License-Identifier: Apache-2.0
// One training step, for a loop of one's own: forward and backward passes over the micro-batches, the reduction of
// their gradients over the ranks, clipping, the optimizer, the moving average; as a CUDA graph where that is wanted.
//
//   TrainStep step(model, optimizer, {.micro_batches = 4, .clip = 1, .cuda_graph = true});
//   for (int64_t i = 0; i < steps; ++i) {
//     optimizer.set_lr(schedule(i));
//     step.run(loader);
//     if (i % 100 == 0) std::printf("%ld: loss %.4f\n", long(i), step.loss().item());
//   }
//
// Note [The loss of a step]: it is the sum over the counted targets of all micro-batches and all ranks, divided by
// their number. So it does not matter how a batch is cut, nor where its ignored targets lie; a micro-batch or a rank
// without any counted target adds nothing, and a step without one has a loss and gradients of 0. The number is known
// only after the last pass: until then each pass is weighted by its own count as a share of a full batch's, which is
// exactly 1 where every target counts, and the optimizer multiplies the rest into the gradients as it reads them.
// Scaled losses (f16) are therefore never larger than those of full batches.
//
// Note [Captured step]: on a GPU all of it but the average can be captured in a CUDA graph, which the steps after the
// second launch as a whole. What differs from step to step lies in device memory that the graph reads: the batches are
// copied into tensors that stay, the learning rate, the count of steps, the step of the random numbers and the loss
// scale have their own already. The weights are those of steps that were not captured, bit by bit. The average stays
// outside, for its decay is a number that the host hands over.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/device/graph.h"
#include "core/random/rng.h"
#include "data/loader.h"
#include "models/optim/ema.h"
#include "models/optim/optimizer.h"
#include "models/zoo/model.h"

namespace xylem {

// The loss of a batch: a scalar, the mean over its counted targets, and 0 rather than NaN if there are none.
using LossFunction = std::function<Tensor(const Batch&)>;

struct TrainStepOptions {
  int64_t micro_batches = 1;     // forward and backward passes in a step, whose gradients add up
  double clip = 0;               // largest norm of the gradients; 0: no clipping
  int64_t ignore_index = -100;   // integer targets of this value do not count
  double label_smoothing = 0;    // for a model of the zoo: share of the target spread over all classes
  Ema* average = nullptr;        // updated after every step
  LossScaler* scaler = nullptr;  // for f16
  bool cuda_graph = false;       // capture the step; it must do the same operations every time, on equal shapes
  bool debug_nan = false;        // repeat a step that is not finite and throw, naming the operation (waits every step)
};

class TrainStep {
 public:
  // The model, the optimizer and what the options point to must outlive the step.
  TrainStep(ZooModel& model, Optimizer& optimizer, const TrainStepOptions& options = {});
  // For any module, with a loss of its own: [&](const Batch& b) { return cross_entropy(net(b.input), b.target); }
  TrainStep(LossFunction loss, Optimizer& optimizer, const TrainStepOptions& options = {});

  // One step, on the next `micro_batches` batches. Collective over the optimizer's ranks.
  void run(const std::function<Batch()>& next);
  void run(Loader& loader);

  // Of the step that ran last, f32 [1] on the device and alike on all ranks: the loss, and the norm of the gradients
  // before clipping.
  const Tensor& loss() const { return loss_; }
  const Tensor& norm() const { return norm_; }
  double forward_flops() const { return forward_flops_; }  // of a step on this rank; known after the first

  bool captures() const { return no_graph_.empty(); }
  const std::string& no_graph() const { return no_graph_; }  // why steps are not captured, or ""
  const CudaGraph& graph() const { return graph_; }

 private:
  using Batches = std::function<Batch(int64_t)>;
  void compute(const Batches& batch);
  void replay(const std::function<Batch()>& next);
  void take_full_count(const Batch& batch);
  void forward_backward(const Batch& batch);
  Tensor settle();
  void stop_at_nan(const std::vector<Batch>& batches, const RngState& random);

  LossFunction loss_of_;
  Optimizer& optimizer_;
  TrainStepOptions options_;
  Device device_;
  std::string no_graph_;
  int64_t runs_ = 0;
  double forward_flops_ = 0;
  Tensor full_count_;          // f64 [1]: targets in a batch, the first that rank 0 has seen
  Tensor totals_;              // f64 [2]: the sum of the losses of the counted targets, and their number
  Tensor loss_, norm_;         // f32 [1]
  std::vector<Batch> kept_;    // that the graph reads
  uint32_t draws_ = 0;         // random operations in it
  std::vector<bool> trained_;  // which parameters it trains
  CudaGraph graph_;
};

}  // namespace xylem
