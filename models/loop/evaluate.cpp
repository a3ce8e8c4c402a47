// SPDX-License-Identifier: Apache-2.0
#include "models/loop/evaluate.h"

#include <algorithm>
#include <optional>

#include "models/loop/targets.h"
#include "models/nn/eval_scope.h"

namespace xylem {
namespace {

// Sums over batches, on the device.
class Tally {
 public:
  Tally(const ZooModel& model, int64_t ignore_index, Device device)
      : classes_(model.classes()),
        ignore_index_(ignore_index),
        labels_(model.task() != RecordSpec::Task::language_modelling),
        regions_(model.task() == RecordSpec::Task::segmentation),
        sums_(zeros({3}, f64, device)),
        confusion_(zeros({regions_ ? classes_ * classes_ : 0}, f64, device)) {}

  // `counts` is false for samples that fill a last batch up.
  void add(const Tensor& logits, const Batch& batch, bool counts) {
    const Tensor count = counted_targets(batch, ignore_index_) * (counts ? 1.0 : 0.0);
    const Tensor loss = cross_entropy(logits, batch.target, {.ignore_index = ignore_index_});
    sums_.narrow(0, 0, 1).add_(loss.to(f64).reshape({1}) * count);
    sums_.narrow(0, 1, 1).add_(count);
    if (!labels_ || !counts) return;
    const Tensor likeliest = argmax(logits), target = batch.target.to(i64);
    sums_.narrow(0, 2, 1).add_(sum(eq(likeliest, target).to(f64)).reshape({1}));
    if (!regions_) return;
    // Ignored pixels go to class 0 with no weight.
    const Tensor weight = 1.0 - eq(target, double(ignore_index_)).to(f64);
    const Tensor pair = where(eq(target, double(ignore_index_)), zeros_like(target), target) * classes_ + likeliest;
    confusion_ = scatter_add(confusion_, 0, pair.flatten(), weight.flatten());
  }

  Evaluation result(const Group& group) {
    if (group.size() > 1) group.all_reduce(sums_).wait();
    if (group.size() > 1 && regions_) group.all_reduce(confusion_).wait();
    const std::vector<double> sums = sums_.to_vector<double>();
    const double count = std::max(sums[1], 1.0);
    Evaluation e{.loss = sums[0] / count};
    if (labels_) e.accuracy = sums[2] / count;
    if (regions_) e.mean_iou = mean_iou(confusion_.to_vector<double>());
    return e;
  }

 private:
  // pairs [target, likeliest]
  double mean_iou(const std::vector<double>& pairs) const {
    double total = 0, occurring = 0;
    for (int64_t c = 0; c < classes_; ++c) {
      double either = -pairs[size_t(c * classes_ + c)];
      for (int64_t other = 0; other < classes_; ++other)
        either += pairs[size_t(c * classes_ + other)] + pairs[size_t(other * classes_ + c)];
      if (either == 0) continue;
      total += pairs[size_t(c * classes_ + c)] / either;
      ++occurring;
    }
    return occurring > 0 ? total / occurring : 0;
  }

  int64_t classes_, ignore_index_;
  bool labels_, regions_;
  Tensor sums_;       // f64: losses, counted targets, right ones
  Tensor confusion_;  // f64 [classes * classes]
};

}  // namespace

Evaluation evaluate(ZooModel& model, Loader& loader, const EvaluateOptions& options) {
  NoGrad guard;
  EvalScope eval(model);
  const Group& group = options.group;
  const SamplerOptions& sampler = loader.sampler().options();
  XY_CHECK(!sampler.shuffle && !sampler.drop_last && sampler.world == group.size() && sampler.rank == group.rank(),
           "evaluate needs a loader with shuffle = false, drop_last = false, rank = ", group.rank(),
           " and world = ", group.size());
  const int64_t all = loader.dataset().size();
  const int64_t wanted = options.samples > 0 ? std::min(options.samples, all) : all;
  const int64_t per_step = sampler.batch * group.size();
  std::optional<Tally> tally;
  loader.set_position(0);
  for (int64_t step = 0; step * per_step < wanted; ++step) {
    Batch batch = loader.next();
    // The last batch is filled up with samples that were already seen. A rank that has nothing left computes with them,
    // so that all make the same calls, but does not count them.
    const int64_t first = step * per_step + group.rank() * sampler.batch;
    const int64_t valid = std::clamp<int64_t>(wanted - first, 0, sampler.batch), used = std::max<int64_t>(valid, 1);
    const Batch counted{batch.input.narrow(0, 0, used), batch.target.narrow(0, 0, used)};
    if (!tally) tally.emplace(model, options.ignore_index, counted.input.device());
    tally->add(model.classes_last(model(counted.input)), counted, valid > 0);
  }
  return tally->result(group);
}

}  // namespace xylem
