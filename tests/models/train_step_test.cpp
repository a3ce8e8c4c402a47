// SPDX-License-Identifier: Apache-2.0
// One training step, and the same as a CUDA graph.
#include "models/loop/train_step.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/random/rng.h"
#include "models/optim/optimizers.h"
#include "models/train/task.h"
#include "models/zoo/zoo.h"
#include "tests/support.h"

namespace xylem {
namespace {

using zoo::Options;

struct Case {
  std::string name, model;
  DType dtype = f32;
  int64_t micro_batches = 1;
  bool sgd = false;
  double label_smoothing = 0;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::unique_ptr<ZooModel> make(const std::string& name, Device device) {
  using I = int64_t;
  Options options = {{"channels", I(3)}, {"width", I(8)}, {"classes", I(8)}};
  if (name == "gpt2")
    options = {{"vocab", I(61)}, {"context", I(16)}, {"layers", I(2)},
               {"heads", I(2)},  {"width", I(64)},   {"dropout", 0.1}};
  if (name == "llama")
    options = {{"vocab", I(61)},   {"context", I(16)}, {"layers", I(2)}, {"heads", I(4)},
               {"kv_heads", I(2)}, {"width", I(64)},   {"hidden", I(96)}};
  if (name == "vit")
    options = {{"image", I(16)}, {"patch", I(4)}, {"classes", I(8)},
               {"layers", I(2)}, {"heads", I(2)}, {"width", I(64)}};
  return zoo::create(name, options, device);
}

// A batch as the loader cuts it: views for tokens.
Batch make_batch(const ZooModel& model, int64_t i, Device device) {
  if (model.task() == RecordSpec::Task::language_modelling) {
    Tensor tokens = sample_index({4, 17}, 61, uint64_t(i)).to(device);
    return {tokens.slice(1, 0, 16), tokens.slice(1, 1, 17)};
  }
  return {sample_normal({4, 3, 16, 16}, 1, uint64_t(i)).to(f32).to(device),
          sample_index({4}, 8, uint64_t(i)).to(device)};
}

// All that a run has come to.
struct Result {
  std::vector<std::vector<double>> numbers;  // losses and norms, then parameters, buffers, averages and state
  RngState random;
  size_t graph_nodes = 0;
};

Result run(const Case& c, bool cuda_graph, Device device, int steps = 8) {
  rng::seed(3);
  std::unique_ptr<ZooModel> model = make(c.model, device);
  model->to(c.dtype);
  std::unique_ptr<Optimizer> optimizer;
  if (c.sgd)
    optimizer = std::make_unique<SGD>(FlatParams(*model), 0.01, SgdArgs{.momentum = 0.9});
  else
    optimizer = std::make_unique<AdamW>(FlatParams(*model), AdamWArgs{.lr = 1e-2});
  Ema ema(*model, optimizer->params(), 0.99);
  std::optional<LossScaler> scaler;  // grows and, at first, overflows
  if (c.dtype == f16) scaler.emplace(device, LossScalerOptions{.initial = 1 << 24, .interval = 2});
  TrainStep step(*model, *optimizer,
                 {.micro_batches = c.micro_batches,
                  .clip = 1,
                  .label_smoothing = c.label_smoothing,
                  .average = &ema,
                  .scaler = scaler ? &*scaler : nullptr,
                  .cuda_graph = cuda_graph});

  Result o;
  int64_t batch = 0;
  for (int i = 0; i < steps; ++i) {
    optimizer->set_lr(1e-2 / (i + 1));
    step.run([&] { return make_batch(*model, batch++, device); });
    o.numbers.push_back({step.loss().item(), step.norm().item()});
    if (i == 4) {  // between replays other work comes and goes
      NoGrad guard;
      Ema::Scope averaged(ema);
      model->eval();
      Batch b = make_batch(*model, 1000, device);
      Tensor input = is_float(b.input.dtype()) ? b.input.to(c.dtype) : b.input;
      o.numbers.push_back((*model)(input).to_vector<double>());
      model->train();
    }
  }
  auto keep = [&](const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& t : tensors) o.numbers.push_back(t.tensor.to_vector<double>());
  };
  keep(model->parameters());
  keep(model->buffers());
  keep(optimizer->state());
  keep(ema.state());
  if (scaler) keep(scaler->state());
  o.random = rng::state();
  o.graph_nodes = step.graph().node_count();
  return o;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

TEST(TrainStep, ABatchInTwoHalvesIsOneStep) {
  // The halves are equal here, so that they are the batch too. Nothing but rounding differs.
  auto train = [](int64_t micro_batches) {
    rng::seed(3);
    auto model = zoo::create("mlp", {{"in", int64_t(12)}, {"hidden", int64_t(16)}, {"classes", int64_t(8)}});
    SGD optimizer(FlatParams(*model), 0.1);
    TrainStep step(*model, optimizer, {.micro_batches = micro_batches});
    Batch batch{sample_normal({4, 12}).to(f32), sample_index({4}, 8)};
    std::vector<double> numbers;
    for (int i = 1; i <= 3; ++i) {
      step.run([&] { return batch; });
      numbers.push_back(step.loss().item());
      numbers.push_back(step.norm().item());
    }
    EXPECT_GT(step.forward_flops(), 0);
    return numbers;
  };
  auto whole = train(1), halves = train(2);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(halves[i], whole[i], 1e-5 * whole[i]) << i;
  EXPECT_LT(whole[4], whole[0]);
}

TEST(TrainStep, OnTheCpuThereIsNoGraph) {
  Case c{.name = "cpu", .model = "resnet_small"};
  Result off = run(c, false, Device::cpu(), 4), on = run(c, true, Device::cpu(), 4);
  EXPECT_EQ(on.graph_nodes, 0u);
  ASSERT_EQ(off.numbers.size(), on.numbers.size());
  for (size_t i = 0; i < off.numbers.size(); ++i) EXPECT_TRUE(same_bits(on.numbers[i], off.numbers[i])) << i;
}

class GraphStepCuda : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Zoo, GraphStepCuda,
    testing::Values(Case{.name = "gpt2", .model = "gpt2"},
                    Case{.name = "gpt2_bf16", .model = "gpt2", .dtype = bf16, .micro_batches = 3},
                    Case{.name = "gpt2_fp16", .model = "gpt2", .dtype = f16, .micro_batches = 2},
                    Case{.name = "llama_bf16", .model = "llama", .dtype = bf16},
                    Case{.name = "vit_bf16", .model = "vit", .dtype = bf16, .label_smoothing = 0.1},
                    Case{.name = "resnet_fp16", .model = "resnet_small", .dtype = f16, .sgd = true},
                    Case{.name = "resnet", .model = "resnet_small", .micro_batches = 2, .sgd = true},
                    Case{.name = "mobilenet_bf16", .model = "mobilenet_small", .dtype = bf16}),
    [](const auto& i) { return i.param.name; });

TEST(TrainStepCuda, ABatchOfAnotherShapeIsAnError) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  const Device device = Device::cuda();
  std::unique_ptr<ZooModel> model = make("resnet_small", device);
  SGD optimizer(FlatParams(*model), 0.01);
  TrainStep step(*model, optimizer, {.cuda_graph = true});
  for (int i = 1; i <= 4; ++i) step.run([&] { return make_batch(*model, i, device); });
  EXPECT_TRUE(step.graph().captured());
  std::string error = error_of([&] {
    step.run([&] {
      Batch b = make_batch(*model, 5, device);
      return Batch{b.input.narrow(0, 0, 1), b.target.narrow(0, 0, 1)};
    });
  });
  EXPECT_NE(error.find("a batch of [1, 3, 16, 16]"), std::string::npos) << error;
}

TEST_P(GraphStepCuda, GivesTheSameBits) {
  if (!cuda_available()) GTEST_SKIP() << "needs a GPU";
  Result plain = run(GetParam(), false, Device::cuda()), graph = run(GetParam(), true, Device::cuda());
  EXPECT_EQ(plain.graph_nodes, 0u);
  EXPECT_GT(graph.graph_nodes, 20u);
  EXPECT_EQ(graph.random, plain.random);
  ASSERT_EQ(graph.numbers.size(), plain.numbers.size());
  for (size_t i = 0; i < plain.numbers.size(); ++i)
    ASSERT_TRUE(same_bits(graph.numbers[i], plain.numbers[i])) << "the first that differs is " << i;
}

}  // namespace
}  // namespace xylem
