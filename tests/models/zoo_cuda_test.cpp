// SPDX-License-Identifier: Apache-2.0
// Whole models on a GPU: equal to the CPU, repeatable, and a training step in one CUDA graph.
#include <gtest/gtest.h>

#include <cmath>

#include "core/device/graph.h"
#include "core/random/rng.h"
#include "models/nn/init.h"
#include "models/nn/layers.h"
#include "models/optim/optimizers.h"
#include "models/zoo/zoo.h"

namespace xylem {
namespace {

using zoo::Options;

Options options_for(const std::string& name) {
  using I = int64_t;
  if (name == "gpt2")
    return {{"vocab", I(61)}, {"context", I(32)}, {"layers", I(2)}, {"heads", I(2)}, {"width", I(64)}};
  if (name == "llama")
    return {{"vocab", I(61)},   {"context", I(32)}, {"layers", I(2)}, {"heads", I(4)},
            {"kv_heads", I(2)}, {"width", I(64)},   {"hidden", I(96)}};
  if (name == "vit")
    return {{"image", I(16)}, {"patch", I(4)}, {"classes", I(8)}, {"layers", I(2)}, {"heads", I(2)}, {"width", I(64)}};
  if (name == "unet") return {{"width", I(8)}, {"depth", I(2)}, {"classes", I(8)}};
  if (name == "mlp") return {{"in", I(3 * 16 * 16)}, {"hidden", I(64)}, {"classes", I(8)}};
  if (name == "mobilenet_small") return {{"channels", I(3)}, {"width", I(8)}, {"blocks", I(1)}, {"classes", I(8)}};
  if (name == "resnet_small") return {{"channels", I(3)}, {"width", I(8)}, {"classes", I(8)}};
  return {{"width", I(8)}, {"classes", I(8)}, {"small_images", true}};
}

struct Example {
  Tensor input, target;
};
Example example_for(const ZooModel& model, Device device) {
  Tensor input, target;
  if (model.task() == RecordSpec::Task::language_modelling) {
    Tensor tokens = sample_index({8, 33}, 61);
    input = tokens.slice(1, 0, 32).contiguous(), target = tokens.slice(1, 1, 33).contiguous();
  } else {
    input = sample_normal({8, 3, 16, 16}).to(f32);
    target = model.task() == RecordSpec::Task::segmentation ? sample_index({8, 16, 16}, 8) : sample_index({8}, 8);
  }
  return {input.to(device), target.to(device)};
}

// The loss and the gradients of one step from the same weights on any device, in f64 on the CPU.
std::vector<std::vector<double>> step_on(const std::string& name, Device device, DType dtype) {
  rng::seed(2);
  auto model = zoo::create(name, options_for(name), device);
  model->to(dtype);
  rng::next_step();
  Example e = example_for(*model, device);
  Tensor loss = model->loss(e.input, e.target);
  loss.backward();
  std::vector<std::vector<double>> result{loss.to_vector<double>()};
  for (const NamedTensor& p : model->parameters()) result.push_back(p.tensor.grad().to_vector<double>());
  return result;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 1e-12;
  for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return std::sqrt(difference / size);
}

class EveryModelCuda : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(Zoo, EveryModelCuda, ::testing::ValuesIn(zoo::names()), [](const auto& i) { return i.param; });

TEST_P(EveryModelCuda, MatchesTheCpu) {
  auto cpu = step_on(GetParam(), Device::cpu(), f32), gpu = step_on(GetParam(), Device::cuda(), f32);
  ASSERT_EQ(cpu.size(), gpu.size());
  EXPECT_NEAR(gpu[0][0], cpu[0][0], 1e-4 * std::abs(cpu[0][0]));
  for (size_t i = 1; i < cpu.size(); ++i) EXPECT_LT(distance(gpu[i], cpu[i]), 1e-2) << i;
}

TEST_P(EveryModelCuda, RepeatsBitForBitInBf16) {
  auto first = step_on(GetParam(), Device::cuda(), bf16);
  EXPECT_EQ(first, step_on(GetParam(), Device::cuda(), bf16));
  EXPECT_NEAR(first[0][0], step_on(GetParam(), Device::cpu(), f32)[0][0], 0.1 * first[0][0]);
}

TEST(InitCuda, LayersDrawTheSameNumbersAsOnTheCpu) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  rng::seed(9);
  Linear cpu(7, 5);
  rng::seed(9);
  init::DeviceScope scope(Device::cuda());
  Linear gpu(7, 5);
  EXPECT_TRUE(gpu.weight.is_cuda());
  EXPECT_EQ(gpu.weight.to_vector<float>(), cpu.weight.to_vector<float>());
  EXPECT_EQ(gpu.bias.to_vector<float>(), cpu.bias.to_vector<float>());
}

// Forward, backward, clipping and AdamW captured once give the same parameters as the same steps run one by one.
TEST(GraphCuda, CapturesAWholeTrainingStep) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  constexpr int kSteps = 5;
  Options options = options_for("gpt2");
  options["dropout"] = 0.1;
  std::vector<std::vector<float>> parameters[2];
  for (bool captured : {false, true}) {
    rng::seed(3);
    auto model = zoo::create("gpt2", options, Device::cuda());
    model->to(bf16);
    AdamW optimizer(*model, {.lr = 1e-2});
    Example e = example_for(*model, Device::cuda());
    auto step = [&] {
      rng::next_step();
      optimizer.zero_grad();
      model->loss(e.input, e.target).backward();
      optimizer.clip(1.0);
      optimizer.step();
    };
    step();  // plans are made outside the graph
    CudaGraph graph;
    if (captured) graph.capture(Device::cuda(), step);
    for (int i = 1; i < kSteps; ++i) captured ? graph.replay() : step();
    for (const NamedTensor& p : model->parameters()) parameters[captured].push_back(p.tensor.to_vector<float>());
  }
  ASSERT_EQ(parameters[0].size(), parameters[1].size());
  for (size_t i = 0; i < parameters[0].size(); ++i) EXPECT_EQ(parameters[0][i], parameters[1][i]) << i;
}

}  // namespace
}  // namespace xylem
