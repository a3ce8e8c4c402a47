// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over all ranks against batch normalisation of the whole batch on one.
#include <gmock/gmock.h>

#include "distributed/parallel/sync_batch_norm.h"
#include "models/nn/layers.h"
#include "tests/dist/training.h"

namespace xylem {
namespace {

// Rank r has r + 2 samples of [C, 2, 3]; `first` is where they begin among those of all ranks.
struct Share {
  Group group = Group::world();
  int64_t first = 0, mine = group.rank() + 2, all = 0;
  Share() {
    for (int r = 0; r < group.size(); ++r) {
      if (r < group.rank()) first += r + 2;
      all += r + 2;
    }
  }
};

Tensor wave(const Shape& shape, double frequency, double offset = 0) {
  std::vector<double> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(frequency * double(i + 1)) + offset;
  return from_vector(values, shape);
}

void expect_near(const Tensor& a, const Tensor& b, double tolerance) {
  EXPECT_LT(distance(a.to_vector<double>(), b.to_vector<double>()), tolerance);
}

TEST(SyncBatchNorm, EqualsBatchNormOfTheWholeBatch) {
  Share s;
  constexpr int64_t kChannels = 3;
  for (bool affine : {true, false}) {
    Tensor x = wave({s.all, kChannels, 2, 3}, 1.7, 0.3), dy = wave(x.shape(), 0.9);
    Tensor gain, bias;
    if (affine)
      gain = wave({kChannels}, 2.1, 1.5).set_requires_grad(), bias = wave({kChannels}, 0.7).set_requires_grad();
    Tensor mean = zeros({kChannels}), var = ones({kChannels}), mean2 = zeros({kChannels}), var2 = ones({kChannels});

    Tensor whole = x.clone().set_requires_grad();
    Tensor y = batch_norm(whole, gain, bias, mean, var, true, 0.1, 1e-5);
    y.backward(dy);
    Tensor dgain, dbias;
    if (affine) {
      dgain = gain.grad().clone(), dbias = bias.grad().clone();
      gain.set_grad({}), bias.set_grad({});
    }

    Tensor part = x.narrow(0, s.first, s.mine).clone().set_requires_grad();
    Tensor out = sync_batch_norm(part, gain, bias, mean2, var2, s.group, 0.1, 1e-5);
    out.backward(dy.narrow(0, s.first, s.mine).contiguous());

    expect_near(out, y.detach().narrow(0, s.first, s.mine), 1e-12);
    expect_near(part.grad(), whole.grad().narrow(0, s.first, s.mine), 1e-12);
    expect_near(mean2, mean, 1e-6);
    expect_near(var2, var, 1e-6);
    if (!affine) continue;
    s.group.all_reduce(gain.grad()).wait();
    s.group.all_reduce(bias.grad()).wait();
    expect_near(gain.grad(), dgain, 1e-12);
    expect_near(bias.grad(), dbias, 1e-12);
  }
}

// The mean of squares minus the square of the mean would lose the variance here.
TEST(SyncBatchNorm, KeepsTheVarianceOfFarAwayValues) {
  Share s;
  Tensor x = wave({s.all, 2, 4}, 1.3, 3000).to(f32);
  Tensor y = sync_batch_norm(x.narrow(0, s.first, s.mine).contiguous(), {}, {}, {}, {}, s.group);
  Tensor expected = batch_norm(x.to(f64), {}, {}, {}, {}, true, 0.1, 1e-5);
  expect_near(y, expected.narrow(0, s.first, s.mine), 2e-3);
}

TEST(SyncBatchNorm, ResNetFollowsOneProcess) {
  for (DType dtype : {f64, f32}) {
    Job job{.dtype = dtype, .steps = 3};
    Trained whole = train(small_resnet(), job);
    job.parallel = on_world();
    job.prepare = [&](ZooModel& model) { use_sync_batch_norm(model, job.parallel.group); };
    Trained shared = train(small_resnet(), job);
    double tolerance = dtype == f64 ? 1e-12 : 1e-5;
    EXPECT_LT(distance(shared.losses, whole.losses), tolerance);
    EXPECT_LT(distance(shared.parameters, whole.parameters), 10 * tolerance);
    EXPECT_LT(distance(shared.buffers, whole.buffers), 1e-5);
  }
}

TEST(SyncBatchNormCuda, ResNetFollowsOneProcess) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  Job job{.dtype = f32, .device = Device::cuda(), .steps = 3};
  Trained whole = train(small_resnet(), job);
  job.parallel = on_world();
  job.prepare = [&](ZooModel& model) { use_sync_batch_norm(model, job.parallel.group); };
  Trained shared = train(small_resnet(), job);
  EXPECT_LT(distance(shared.losses, whole.losses), 1e-4);
  EXPECT_LT(distance(shared.parameters, whole.parameters), 1e-3);
}

}  // namespace
}  // namespace xylem
