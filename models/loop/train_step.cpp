// SPDX-License-Identifier: Apache-2.0
#include "models/loop/train_step.h"

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/device/allocator.h"
#include "distributed/record/trace.h"
#include "models/loop/flops.h"
#include "models/loop/nan_search.h"

namespace xylem {
namespace {

// The first chooses algorithms and counts FLOPs, the second is the first with the order of the buckets that holds.
constexpr int64_t kWarmUp = 2;

}  // namespace

TrainStep::TrainStep(const Parts& parts, const TrainConfig& config, DType dtype, int64_t micro_batches)
    : parts_(parts),
      device_(parts.optimizer.params().device()),
      dtype_(dtype),
      micro_batches_(micro_batches),
      clip_(config.train.clip),
      label_smoothing_(config.train.label_smoothing),
      debug_nan_(config.train.debug_nan),
      captures_(config.train.cuda_graph && device_.is_cuda()),
      loss_(zeros({1}, f32, device_)),
      norm_(zeros({1}, f32, device_)) {}

void TrainStep::run(int64_t number, const std::function<Batch()>& next) {
  rng::next_step();
  if (captures_ && ++runs_ > kWarmUp)
    replay(number, next);
  else
    compute(number, [&](int64_t) { return next(); });
  if (parts_.ema) parts_.ema->update();
}

void TrainStep::compute(int64_t number, const Batches& batch) {
  RngState random = rng::state();
  parts_.optimizer.zero_grad();
  loss_.zero_();
  double weight = 1.0 / double(micro_batches_);
  std::vector<Batch> kept;
  for (int64_t i = 0; i < micro_batches_; ++i) {
    Batch b = batch(i);
    auto sync = parts_.optimizer.sync_when(i + 1 == micro_batches_);
    Tensor loss = forward_backward(b, weight);
    no_grad([&] { loss_.add_(loss.reshape({1}), weight); });
    if (debug_nan_) kept.push_back({b.input.clone(), b.target.clone(), {}});  // the loader reuses its memory
  }
  trace::Span span("optimizer", device_);
  norm_.copy_(parts_.optimizer.clip(clip_, parts_.scaler));
  if (debug_nan_) stop_at_nan(number, kept, random);
  parts_.optimizer.step();
}

void TrainStep::replay(int64_t number, const std::function<Batch()>& next) {
  for (int64_t i = 0; i < micro_batches_; ++i) {
    Batch b = next();
    if (i == int64_t(batches_.size()))
      batches_.push_back(
          {empty(b.input.shape(), b.input.dtype(), device_), empty(b.target.shape(), b.target.dtype(), device_), {}});
    Batch& kept = batches_[size_t(i)];
    XY_CHECK(b.input.shape() == kept.input.shape() && b.target.shape() == kept.target.shape(), "a batch of ",
             b.input.shape(), " with targets of ", b.target.shape(),
             " does not fit the CUDA graph of a step, which was captured with ", kept.input.shape(), " and ",
             kept.target.shape());
    kept.input.copy_(b.input);
    kept.target.copy_(b.target);
  }
  trace::Span span("step as a graph", device_);
  parts_.optimizer.params().parallel().forget();
  if (!graph_.captured()) {
    allocator(device_).release_cached();  // memory of the steps before, since the graph has its own
    graph_.capture(device_, [&] { compute(number, [&](int64_t i) { return batches_[size_t(i)]; }); });
    draws_ = rng::state().op;
  }
  graph_.replay();
  RngState random = rng::state();
  random.op = draws_;  // as if the host had drawn
  rng::set_state(random);
}

Tensor TrainStep::input_of(const Batch& batch) const {
  return is_float(batch.input.dtype()) ? batch.input.to(dtype_) : batch.input;
}

Tensor TrainStep::forward_backward(const Batch& batch, double weight) {
  Tensor input = input_of(batch), loss;
  {
    std::optional<FlopCounter> counter;
    if (forward_flops_ == 0) counter.emplace();
    trace::Span span("forward", device_);
    loss = label_smoothing_ > 0
               ? cross_entropy(parts_.model(input), batch.target, {.label_smoothing = label_smoothing_})
               : parts_.model.loss(input, batch.target);
    if (counter) forward_flops_ = counter->total() * double(micro_batches_);
  }
  Tensor scaled = weight == 1 ? loss : loss * weight;
  trace::Span span("backward", device_);
  (parts_.scaler ? (*parts_.scaler)(scaled) : scaled).backward();
  return loss.detach();
}

// The weights are still those that the step began with, so repeating it shows where it went wrong.
void TrainStep::stop_at_nan(int64_t number, const std::vector<Batch>& batches, const RngState& random) {
  double loss = loss_.item(), norm = norm_.item();
  if (std::isfinite(loss) && (std::isfinite(norm) || parts_.scaler)) return;
  rng::set_state(random);
  parts_.optimizer.zero_grad();
  auto sync = parts_.optimizer.sync_when(false);
  NanSearch search;
  for (const Batch& batch : batches) {
    Tensor value = parts_.model.loss(input_of(batch), batch.target);
    search.begin_backward();
    if (search.finding().empty()) value.backward();
    search.check_gradients(parts_.model.parameters());
    if (!search.finding().empty()) break;
    search.begin_forward();
  }
  XY_FAIL("step ", number, ": loss ", loss, ", gradient norm ", norm, "; ",
          search.finding().empty() ? "repeating the step gave finite values" : search.finding());
}

}  // namespace xylem
