// SPDX-License-Identifier: Apache-2.0
// A few training steps on made-up data, alone with the whole batch or on the ranks of a group with a share each.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/random/rng.h"
#include "distributed/group/group.h"
#include "models/optim/ema.h"
#include "models/optim/optimizers.h"
#include "models/optim/registry.h"
#include "models/zoo/gpt2.h"
#include "models/zoo/mlp.h"
#include "models/zoo/resnet.h"
#include "tests/support.h"

namespace xylem {

// About 8 samples that the ranks, and two micro-batches on each, share evenly.
inline int64_t shared_batch() {
  int64_t least = 2 * Group::world().size();
  return (7 + least) / least * least;
}

struct Job {
  DType dtype = f64;
  Device device = {};
  int steps = 4, micro_batches = 1;
  int64_t batch = shared_batch();  // of all ranks together
  double clip = 0.5;
  std::string optimizer = "adamw";
  bool ema = false, scale_loss = false;
  double initial_scale = 1024;
  ParallelOptions parallel = {};
  std::function<void(ZooModel&)> prepare = {};  // before the optimizer is made
};

struct Trained {
  std::vector<double> losses, norms;            // of every step; losses are means over the whole batch
  std::vector<std::vector<double>> parameters;  // at the end
  std::vector<std::vector<double>> buffers;
  std::vector<std::vector<double>> averages;  // with ema: what the model holds in the scope
  std::vector<double> scales;
};

using Maker = std::function<std::unique_ptr<ZooModel>()>;

inline Maker small_mlp() {
  return [] { return std::make_unique<zoo::Mlp>(zoo::MlpConfig{.in = 12, .hidden = 33, .layers = 2, .classes = 5}); };
}
inline Maker small_gpt2(bool recompute = false) {
  return [recompute] {
    return std::make_unique<zoo::Gpt2>(
        zoo::Gpt2Config{.vocab = 31, .context = 6, .layers = 3, .heads = 2, .width = 12, .recompute = recompute});
  };
}
inline Maker small_resnet() {
  return [] {
    return std::make_unique<zoo::ResNet>(zoo::ResNetSmallConfig{.channels = 2, .classes = 5, .width = 4}.resnet());
  };
}

// Input and target of a whole step; the same on all ranks.
inline std::pair<Tensor, Tensor> make_batch(const ZooModel& model, int64_t batch, int step) {
  bool tokens = model.task() == RecordSpec::Task::language_modelling, images = dynamic_cast<const zoo::ResNet*>(&model);
  Shape shape = tokens ? Shape{batch, 6} : images ? Shape{batch, 2, 8, 8} : Shape{batch, 12};
  auto noise = [step](int64_t i, uint64_t stream) {
    return uniform01(philox(99, uint64_t(i), stream + 10 * uint64_t(step)).v[0]);
  };
  std::vector<double> input;
  std::vector<int64_t> target;
  for (int64_t i = 0; i < shape.numel(); ++i)
    input.push_back(tokens ? std::floor(noise(i, 0) * 31) : noise(i, 0) - 0.5);
  for (int64_t i = 0; i < (tokens ? shape.numel() : batch); ++i)
    target.push_back(int64_t(noise(i, 1) * (tokens ? 31 : 5)));
  Tensor x = from_vector(input, shape);
  return {tokens ? x.to(i64) : x, from_vector(target, tokens ? shape : Shape{batch})};
}

inline std::vector<std::vector<double>> values_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::vector<double>> all;
  for (const NamedTensor& t : tensors) all.push_back(t.tensor.to_vector<double>());
  return all;
}

inline double average(const Group& group, double value, Device device) {
  Tensor t = full({1}, value, f64, device);
  group.all_reduce(t, ReduceOp::avg).wait();
  return t.item();
}

// `inspect` sees the optimizer after the last step.
inline Trained train(const Maker& make, const Job& s, const std::function<void(ZooModel&, Optimizer&)>& inspect = {}) {
  const Group& group = s.parallel.group;
  rng::seed(uint64_t(5 + group.rank()));  // every rank its own weights, of which those of rank 0 must win
  std::unique_ptr<ZooModel> model = make();
  model->to(s.device);
  model->to(s.dtype);
  if (s.prepare) s.prepare(*model);
  bool sgd = s.optimizer == "sgd";
  auto optimizer = optimizer_kind(s.optimizer)
                       .make(*model, {.parallel = s.parallel}, sgd ? 0.1 : 0.01, sgd ? 0.01 : 0.1, OptionValues{});
  std::optional<Ema> ema;
  if (s.ema) ema.emplace(*model, optimizer->params(), 0.9);
  std::optional<LossScaler> scaler;
  if (s.scale_loss) scaler.emplace(s.device, LossScalerOptions{.initial = s.initial_scale, .interval = 2});

  Trained result;
  int64_t micro = s.batch / group.size() / s.micro_batches;
  for (int step = 0; step < s.steps; ++step) {
    auto [input, target] = make_batch(*model, s.batch, step);
    optimizer->zero_grad();
    double loss_sum = 0;
    for (int i = 0; i < s.micro_batches; ++i) {
      int64_t first = (i * group.size() + group.rank()) * micro;
      Tensor x = input.narrow(0, first, micro).contiguous().to(s.device),
             y = target.narrow(0, first, micro).contiguous().to(s.device);
      if (is_float(x.dtype())) x = x.to(s.dtype);
      auto sync = optimizer->sync_when(i + 1 == s.micro_batches);
      Tensor loss = model->loss(x, y) / double(s.micro_batches);
      (scaler ? (*scaler)(loss) : loss).backward();
      loss_sum += loss.item();
    }
    Tensor norm = optimizer->clip(s.clip, scaler ? &*scaler : nullptr);
    optimizer->step();
    if (ema) ema->update();
    result.losses.push_back(average(group, loss_sum, s.device));
    result.norms.push_back(std::isfinite(norm.item()) ? norm.item() : INFINITY);  // of an overflow
    if (scaler) result.scales.push_back(scaler->scale().item());
  }
  result.parameters = values_of(model->parameters());
  result.buffers = values_of(model->buffers());
  if (ema) {
    Ema::Scope scope(*ema);
    result.averages = values_of(state_dict(*model));
  }
  if (inspect) inspect(*model, *optimizer);
  return result;
}

// The largest |a - b| / (1 + |b|) over all figures.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    double d = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    if (!(d <= worst)) worst = d;
  }
  return worst;
}
inline double distance(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    double d = distance(a[i], b[i]);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

inline ParallelOptions on_world(int zero = 0) {
  // Buckets of a few hundred parameters, so that the small models have several.
  return {.group = Group::world(), .zero = zero, .bucket_mb = 0.002, .first_bucket_mb = 0.0005};
}

}  // namespace xylem
