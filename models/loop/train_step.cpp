// SPDX-License-Identifier: Apache-2.0
#include "models/loop/train_step.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/device/allocator.h"
#include "distributed/record/recorder.h"
#include "distributed/record/trace.h"
#include "models/loop/flops.h"
#include "models/loop/nan_search.h"
#include "models/loop/targets.h"

namespace xylem {
namespace {

// The first chooses algorithms and counts FLOPs, the second is the first with the order of the buckets that holds.
constexpr int64_t kWarmUp = 2;

std::string why_no_graph(const TrainStepOptions& options, Device device) {
  if (!options.cuda_graph) return "it was not asked for";
  if (!device.is_cuda()) return "the run is on the CPU";
  if (options.debug_nan) return "debug_nan reads the results of every operation";
  return "";
}

LossFunction own_loss(ZooModel& model, const TrainStepOptions& options) {
  const CrossEntropyArgs args{.ignore_index = options.ignore_index, .label_smoothing = options.label_smoothing};
  return [&model, args](const Batch& batch) { return model.loss(batch.input, batch.target, args); };
}

TrainStepOptions without_smoothing(TrainStepOptions options) {
  options.label_smoothing = 0;
  return options;
}

const Group& ranks_of(const Optimizer& optimizer) { return optimizer.params().parallel().group(); }

std::vector<NamedTensor> parameters_of(const Optimizer& optimizer) {
  std::vector<NamedTensor> all;
  for (const FlatGroup& group : optimizer.params().groups())
    for (const FlatSlot& slot : group.slots) all.push_back({slot.name, slot.param});
  std::reverse(all.begin(), all.end());  // as the module lists them
  return all;
}

Tensor copy_of(const Tensor& t) { return t.defined() ? t.clone() : t; }
Tensor room_for(const Tensor& t, Device device) {
  return t.defined() ? empty_in_order_of(t, t.shape(), t.dtype(), device) : t;
}
Shape shape_of(const Tensor& t) { return t.defined() ? t.shape() : Shape{}; }

}  // namespace

TrainStep::TrainStep(ZooModel& model, Optimizer& optimizer, const TrainStepOptions& options)
    : TrainStep(own_loss(model, options), optimizer, without_smoothing(options)) {}

TrainStep::TrainStep(LossFunction loss, Optimizer& optimizer, const TrainStepOptions& options)
    : loss_of_(std::move(loss)),
      optimizer_(optimizer),
      options_(options),
      device_(optimizer.params().device()),
      no_graph_(why_no_graph(options, device_)),
      totals_(zeros({2}, f64, device_)),
      loss_(zeros({1}, f32, device_)),
      norm_(zeros({1}, f32, device_)) {
  XY_CHECK(options.micro_batches >= 1, "a step needs at least one micro-batch, not ", options.micro_batches);
  XY_CHECK(options.label_smoothing == 0, "label_smoothing (", options.label_smoothing,
           ") is for the loss of a model of the zoo; a loss of your own smooths its targets itself");
}

void TrainStep::run(Loader& loader) {
  run([&] { return loader.next(); });
}

void TrainStep::run(const std::function<Batch()>& next) {
  rng::next_step();
  if (captures() && ++runs_ > kWarmUp)
    replay(next);
  else
    compute([&](int64_t) { return next(); });
  if (options_.average) options_.average->update();
}

void TrainStep::compute(const Batches& batch) {
  RngState random = rng::state();
  optimizer_.zero_grad();
  totals_.zero_();
  std::vector<Batch> seen;
  for (int64_t i = 0; i < options_.micro_batches; ++i) {
    Batch b = batch(i);
    auto sync = optimizer_.sync_when(i + 1 == options_.micro_batches);
    forward_backward(b);
    if (options_.debug_nan) seen.push_back({copy_of(b.input), copy_of(b.target)});  // the loader reuses its memory
  }
  trace::Span span("optimizer", device_);
  norm_.copy_(optimizer_.clip(options_.clip, options_.scaler, settle()));
  if (options_.debug_nan) stop_at_nan(seen, random);
  optimizer_.step();
}

void TrainStep::replay(const std::function<Batch()>& next) {
  for (int64_t i = 0; i < options_.micro_batches; ++i) {
    Batch b = next();
    if (i == int64_t(kept_.size())) kept_.push_back({room_for(b.input, device_), room_for(b.target, device_)});
    Batch& kept = kept_[size_t(i)];
    XY_CHECK(b.input.shape() == kept.input.shape() && shape_of(b.target) == shape_of(kept.target), "a batch of ",
             b.input.shape(), " with targets of ", shape_of(b.target),
             " does not fit the CUDA graph of a step, which was captured with ", kept.input.shape(), " and ",
             shape_of(kept.target));
    kept.input.copy_(b.input);
    if (b.target.defined()) kept.target.copy_(b.target);
  }
  optimizer_.params().refresh();
  trace::Span span("step as a graph", device_);
  optimizer_.params().parallel().forget();
  if (!graph_.captured()) {
    allocator(device_).release_cached();  // memory of the steps before, since the graph has its own
    graph_.capture(device_, [&] { compute([&](int64_t i) { return kept_[size_t(i)]; }); });
    draws_ = rng::state().op;
    trained_ = optimizer_.params().trained();
  }
  XY_CHECK(
      trained_ == optimizer_.params().trained(),
      "parameters were frozen or unfrozen after the step was captured in a CUDA graph, which goes on with those of "
      "then; train without a graph, or make a new TrainStep");
  graph_.replay();
  RngState random = rng::state();
  random.op = draws_;  // as if the host had drawn
  rng::set_state(random);
}

// Collective, in the first step: any number would do as long as all ranks take the same.
void TrainStep::take_full_count(const Batch& batch) {
  int64_t count = targets_in(batch);
  if (ranks_of(optimizer_).size() > 1) count = ranks_of(optimizer_).gather_integers(count)[0];
  full_count_ = full({1}, double(std::max<int64_t>(count, 1)), f64, device_);
}

void TrainStep::forward_backward(const Batch& batch) {
  if (!full_count_.defined()) take_full_count(batch);
  const Tensor count = counted_targets(batch, options_.ignore_index).to(device_);
  Tensor loss;
  {
    std::optional<FlopCounter> counter;
    if (forward_flops_ == 0) counter.emplace();
    trace::Span span("forward", device_);
    loss = loss_of_(batch);
    if (counter) forward_flops_ = counter->total() * double(options_.micro_batches);
  }
  XY_CHECK(loss.numel() == 1, "the loss of a step must be one number, the mean over its targets, but its shape is ",
           loss.shape());
  if (is_half(loss.dtype())) loss = loss.to(f32);
  Tensor weight = no_grad([&] {
    totals_.narrow(0, 0, 1).add_(loss.detach().reshape({1}).to(f64) * count);
    totals_.narrow(0, 1, 1).add_(count);
    return (count / full_count_ * (1.0 / double(options_.micro_batches))).to(loss.dtype()).reshape(loss.shape());
  });
  Tensor weighted = loss * weight;
  trace::Span span("backward", device_);
  (options_.scaler ? (*options_.scaler)(weighted) : weighted).backward();
}

// The loss of the step, and what is left to multiply into the gradients, f32 [1]: see Note [The loss of a step]. These
// are averages over the ranks of passes that were weighted for full batches.
Tensor TrainStep::settle() {
  NoGrad guard;
  const Group& ranks = ranks_of(optimizer_);
  optimizer_.params().finish_grads();  // before the next collective, so that all ranks call them in one order
  if (ranks.size() > 1) {
    recorder::Tag tag("loss of the step");
    ranks.all_reduce(totals_).wait();
  }
  Tensor count = maximum(totals_.narrow(0, 1, 1), ones({1}, f64, device_));
  loss_.copy_(totals_.narrow(0, 0, 1) / count);
  return (full_count_ * double(options_.micro_batches * ranks.size()) / count).to(f32);
}

// The weights are still those that the step began with, so repeating it shows where it went wrong.
void TrainStep::stop_at_nan(const std::vector<Batch>& batches, const RngState& random) {
  double loss = loss_.item(), norm = norm_.item();
  if (std::isfinite(loss) && (std::isfinite(norm) || options_.scaler)) return;
  rng::set_state(random);
  optimizer_.zero_grad();
  auto sync = optimizer_.sync_when(false);
  NanSearch search;
  for (const Batch& batch : batches) {
    Tensor value = loss_of_(batch);
    search.begin_backward();
    if (search.finding().empty()) value.backward();
    search.check_gradients(parameters_of(optimizer_));
    if (!search.finding().empty()) break;
    search.begin_forward();
  }
  XY_FAIL("the loss of a step is ", loss, " and its gradient norm ", norm, "; ",
          search.finding().empty() ? "repeating the step gave finite values" : search.finding());
}

}  // namespace xylem
