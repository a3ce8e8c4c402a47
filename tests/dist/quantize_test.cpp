// SPDX-License-Identifier: Apache-2.0
// Ranks that calibrate on parts of the data find the scales that one rank finds on all of it.
#include <gtest/gtest.h>

#include <bit>

#include "core/op/op_spec.h"
#include "core/random/rng.h"
#include "distributed/group/group.h"
#include "models/nn/layers.h"
#include "models/nn/sequential.h"
#include "models/quantize/fake_quantizer.h"
#include "models/quantize/quantize.h"

namespace xylem {
namespace {

std::vector<double> thresholds(quantize::Observer observer, const std::vector<Tensor>& batches, const Group* group) {
  rng::seed(3);
  Sequential model(Linear(24, 32), relu, Linear(32, 16));
  quantize::prepare(model, [&] { model(batches[0]); }, {.observer = observer});
  quantize::calibrate(
      model,
      [&] {
        for (const Tensor& b : batches) model(b);
      },
      group);
  std::vector<double> found;
  for (auto& [name, q] : quantize::quantizers_of(model))
    if (!q->is_weight()) found.push_back(q->amax.tensor.item());
  return found;
}

TEST(QuantizeRanks, AgreeOnScales) {
  Group world = Group::world();
  const int n = world.size();
  std::vector<Tensor> all, mine;
  for (int i = 0; i < 4 * n; ++i) {
    // Ranges that differ by rank, so that histograms have to widen.
    all.push_back(sample_normal({40, 24}, std::ldexp(1.0, i % n), uint64_t(i + 1)).to(f32));
    if (i % n == world.rank()) mine.push_back(all.back());
  }
  using quantize::Observer;
  for (Observer observer : {Observer::minmax, Observer::percentile, Observer::entropy, Observer::mse})
    EXPECT_EQ(thresholds(observer, mine, &world), thresholds(observer, all, nullptr)) << int(observer);

  auto average = thresholds(Observer::moving_average, mine, &world);
  auto local = thresholds(Observer::moving_average, mine, nullptr);
  for (size_t i = 0; i < average.size(); ++i) {
    double sum = 0;
    for (const std::string& value : world.gather_strings(std::to_string(local[i]))) sum += std::stod(value);
    EXPECT_NEAR(average[i], sum / n, 1e-5 * sum);
  }
}

TEST(QuantizeRanks, MovingAveragesGoOnAsThoseOfOneRank) {
  Group world = Group::world();
  Tensor first = sample_normal({10, 24}, 1, 1).to(f32);
  auto averages = [&](bool whole) {
    rng::seed(3);
    Sequential model(Linear(24, 32), relu, Linear(32, 16));
    quantize::prepare(model, [&] { model(first); }, {.observer = quantize::Observer::moving_average});
    quantize::calibrate(model, [&] { model(first); });
    model.train(true);
    for (uint64_t step = 2; step < 5; ++step) {
      Tensor batch = sample_normal({10 * world.size(), 24}, double(step), step).to(f32);
      model(whole ? batch : batch.narrow(0, 10 * world.rank(), 10));
      if (!whole) quantize::agree(model, world);
    }
    std::vector<double> found;
    for (auto& [name, q] : quantize::quantizers_of(model))
      if (!q->is_weight()) found.push_back(q->amax.tensor.item()), found.push_back(q->scale.tensor.item());
    return found;
  };
  auto found = averages(false);
  // The second layer's input depends on the scale that the first's had within the step, each rank's own.
  EXPECT_EQ(found[0], averages(true)[0]);
  EXPECT_EQ(found[1], averages(true)[1]);
  for (double value : found)
    for (int64_t other : world.gather_integers(std::bit_cast<int64_t>(value)))
      EXPECT_EQ(other, std::bit_cast<int64_t>(value));
}

TEST(QuantizeRanks, OneWithoutDataTakesTheOthers) {
  Group world = Group::world();
  if (world.size() == 1) GTEST_SKIP() << "needs two ranks";
  Tensor x = sample_normal({40, 24}, 1, 5).to(f32);
  rng::seed(3);
  Sequential model(Linear(24, 32));
  quantize::prepare(model, [&] { model(x); }, {.observer = quantize::Observer::percentile});
  quantize::calibrate(
      model,
      [&] {
        if (world.rank() == 0) model(x);
      },
      &world);
  double scale = quantize::quantizers_of(model)[0].second->scale.tensor.item();
  for (const std::string& other : world.gather_strings(std::to_string(scale))) EXPECT_EQ(other, std::to_string(scale));
  EXPECT_LT(scale, 1);
}

}  // namespace
}  // namespace xylem
