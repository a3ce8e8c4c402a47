// SPDX-License-Identifier: Apache-2.0
// The step model against what one H200 did, and against arithmetic of its own.
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "core/util/check.h"
#include "models/plan/step_plan.h"
#include "models/zoo/zoo.h"
#include "tests/distributed/plan_machines.h"

namespace xylem {
namespace {

constexpr double kGiB = double(1 << 30);

GpuSpec h200() { return gpu_spec("NVIDIA H200"); }
// Counted once for all tests.
const ModelWork& known(const std::string& name) {
  static std::map<std::string, ModelWork> counted;
  auto at = counted.find(name);
  if (at == counted.end()) at = counted.emplace(name, known_work(name).value()).first;
  return at->second;
}
StepOptions batch(int64_t global, int64_t sequence, int64_t micro = 0) {
  StepOptions o;
  o.global_batch = global;
  o.sequence = sequence;
  o.micro_batch = micro;
  return o;
}

TEST(StepModel, KnowsTheModels) {
  EXPECT_EQ(known("gpt2-124m").parameters, 124439808);  // as published
  EXPECT_EQ(known("gpt2-1.5b").parameters, 1557611200);
  EXPECT_EQ(known("llama-8b").parameters, 8030261248);
  EXPECT_EQ(known("resnet18").parameters, 11689512);
  EXPECT_EQ(known("resnet50").parameters, 25557032);
  EXPECT_NEAR(known("resnet50").forward_flops(1), 2 * 4.09e9, 0.01e9);
  EXPECT_FALSE(known_work("gpt9"));
}

// Measured on one H200: our own figures (bench/results/gpt2_124m_h200.json: mean of the runs, single_gpu_h200.json) and
// PyTorch's of GPT-2.
TEST(StepModel, MeetsWhatOneH200Did) {
  struct Row {
    const char* model;
    int64_t batch, sequence;
    double rate, tolerance;
  };
  for (const Row& r : {Row{"gpt2-124m", 32, 1024, 502000, 0.07}, Row{"gpt2-124m", 64, 1024, 517000, 0.05},
                       Row{"gpt2-124m", 32, 1024, 507000, 0.06}, Row{"gpt2-124m", 64, 1024, 528000, 0.03},
                       Row{"gpt2-1.5b", 16, 1024, 47300, 0.03}, Row{"llama-1b", 4, 4096, 55588, 0.08}}) {
    StepEstimate e = estimate_single(known(r.model), h200(), batch(r.batch, r.sequence, r.batch));
    // They read the logits once more than linear_cross_entropy does.
    const double tokens = double(r.batch * r.sequence);
    const double more = tokens * 2 * known(r.model).whole.logits / (0.72 * h200().copy_gbps * 1e9);
    EXPECT_NEAR(tokens / (tokens / e.rate + more) / r.rate, 1, r.tolerance) << r.model << " x" << r.batch;
  }
}

// Measured while a step held all logits and their gradient, of which it now holds 1 GiB.
TEST(StepModel, MeetsTheMemoryOfOneH200) {
  for (auto [sequences, gib] : {std::pair{32, 17.35}, {64, 32.61}}) {
    StepMemory m = estimate_single(known("gpt2-124m"), h200(), batch(sequences, 1024, sequences)).memory;
    const double logits = 2 * 2 * sequences * 1024.0 * 50257 / kGiB - 1;
    EXPECT_NEAR((m.total() / kGiB + logits) / gib, 1, 0.05) << sequences;
    EXPECT_NEAR(m.weights, 2 * 124439808.0, 1);
    EXPECT_NEAR(m.optimizer, 12 * 124439808.0, 1);
  }
}

// One H200: PyTorch's rate, our own memory (single_gpu_h200.json). One A100 80 GB: NVIDIA's published figure
// (DeepLearningExamples, ResNet-50 v1.5, AMP). None of the model's shares was fitted to a convolutional network.
TEST(StepModel, MeetsResNet50) {
  const ModelWork& resnet = known("resnet50");
  StepEstimate e = estimate_single(resnet, h200(), batch(256, 1, 256));
  EXPECT_NEAR(e.rate / 6507, 1, 0.03);
  EXPECT_NEAR(e.memory.total() / kGiB / 10.77, 1, 0.05);
  EXPECT_THAT(e.bottleneck, testing::HasSubstr("device memory"));
  EXPECT_NEAR(estimate_single(resnet, gpu_spec("A100-SXM4-80GB"), batch(256, 1, 256)).rate / 2470, 1, 0.06);
}

TEST(StepModel, SmallPassesWaitForTheirLaunches) {
  using zoo::Options;
  const ModelWork tiny = count_work(
      "gpt2", Options{{"layers", int64_t(4)}, {"width", int64_t(128)}, {"heads", int64_t(4)}, {"vocab", int64_t(256)}});
  // Norms 2 x 3, products with a bias 4 x 4, attention 4, GELU 2.
  EXPECT_EQ(tiny.block.kernels, 28);
  StepEstimate e = estimate_single(tiny, h200(), batch(16, 128, 16));
  EXPECT_NEAR(e.compute_ms, tiny.whole.kernels * 0.003, 1e-9);
  EXPECT_THAT(e.bottleneck, testing::HasSubstr("launches"));
}

TEST(StepModel, LaysConvolutionalNetworksOutAsReplicas) {
  StepPlan plan = plan_step(test::make_host(test::hgx_h200()), known("resnet50"), h200(), batch(2048, 1));
  ASSERT_EQ(plan.layouts.size(), 4u);
  for (const StepEstimate& e : plan.layouts) {
    EXPECT_EQ(e.layout.data, 8);
    EXPECT_EQ(e.micro_batch, 256);
    EXPECT_GT(e.rate, 0.9 * 8 * 6507);
  }
  EXPECT_THAT(plan.str(), testing::HasSubstr("images/s"));
  EXPECT_THAT(plan.to_json(), testing::HasSubstr("images_per_s"));
}

// The stem of small images has no stride and no pooling; a stage of two blocks of two convolutions follows.
TEST(StepModel, CountsWhatASmallResNetDoes) {
  using zoo::Options;
  const Options options{{"blocks", int64_t(2)},
                        {"stages", int64_t(1)},
                        {"width", int64_t(16)},
                        {"channels", int64_t(1)},
                        {"classes", int64_t(10)}};
  const ModelWork m = count_work("resnet_small", options, 28);
  EXPECT_FALSE(m.language);
  EXPECT_EQ(m.parameters, 16 * (9 + 2) + 4 * 16 * (16 * 9 + 2) + 10 * 17);
  EXPECT_EQ(m.forward_flops(1), 2.0 * (28 * 28 * (16 * 9 + 4 * 16 * 16 * 9) + 160));
  // Outputs of 5 convolutions and 5 ReLUs, the image; beside them statistics and what follows the pooling.
  EXPECT_NEAR(m.whole.kept / (28.0 * 28 * (10 * 16 + 1)), 1, 0.02);
  const ProductWork stem{.flops = 2.0 * 28 * 28 * 16 * 9, .elements = 28.0 * 28 * 17, .width = 0, .times = 2};
  EXPECT_EQ(m.whole.products.at(stem), 1) << "the image needs no gradient";
  // Norms 8 and ReLUs 5 of five layers; two blocks add (3) and sum two gradients (3); pooling and the loss.
  EXPECT_NEAR(m.whole.moved / (28.0 * 28 * 16 * (5 * (8 + 5) + 2 * 6 + 3)), 1, 0.01);
}

TEST(StepModel, CountsABlockOfATransformer) {
  const ModelWork& m = known("gpt2-124m");
  EXPECT_TRUE(m.language);
  EXPECT_EQ(m.blocks, 12);
  EXPECT_EQ(m.block_parameters, 12 * 768 * 768 + 13 * 768);
  EXPECT_EQ(m.width(), 768);
  EXPECT_EQ(m.heads, 12);
  EXPECT_EQ(m.context, 1024);
  EXPECT_EQ(m.whole.logits, 50257);
  double flops = 0;
  for (const auto& [product, n] : m.block.products) flops += n * product.flops;
  EXPECT_EQ(flops, 2.0 * 12 * 768 * 768);
  EXPECT_EQ(m.block.attention, 2.0 * 768) << "causal: half of the scores";
  // What the norms, attention and the feed-forward part read; a number a head beside it.
  EXPECT_NEAR(m.block.kept / (8 * 768 + 2 * 3072), 1, 0.01);
  const ModelWork& llama = known("llama-8b");
  EXPECT_EQ(llama.kv_heads, 8);
  EXPECT_EQ(llama.blocks, 32);
  EXPECT_EQ(known("llama-70b").parameters, 70553706496) << "its weights are never made";
}

TEST(StepModel, RecomputationTradesMemoryForTime) {
  using zoo::Options;
  Options options{{"layers", int64_t(4)}, {"width", int64_t(256)}, {"heads", int64_t(4)}, {"vocab", int64_t(256)}};
  const ModelWork kept = count_work("gpt2", options);
  options["recompute"] = true;
  const ModelWork again = count_work("gpt2", options);
  EXPECT_LT(again.block.kept, 0.1 * kept.block.kept);
  EXPECT_EQ(again.block_again, kept.block.kept);
  EXPECT_EQ(again.parameters, kept.parameters);
  const StepEstimate without = estimate_single(kept, h200(), batch(64, 1024, 64)),
                     with = estimate_single(again, h200(), batch(64, 1024, 64));
  EXPECT_LT(with.memory.activations, 0.6 * without.memory.activations);
  EXPECT_GT(with.compute_ms, 1.1 * without.compute_ms);
}

TEST(StepModel, PlansEveryModelOfTheZoo) {
  const Topology machine = test::make_host(test::hgx_h200());
  for (const std::string& name : zoo::names()) {
    const ModelWork m = count_work(name, {}, name.starts_with("mobilenet") || name == "unet" ? 64 : 0);
    const StepPlan plan = plan_step(machine, m, h200(), batch(512, m.language ? 128 : 0));
    EXPECT_EQ(plan.unknown, "") << name;
    ASSERT_FALSE(plan.layouts.empty()) << name;
    EXPECT_TRUE(plan.layouts[0].fits) << name;
    EXPECT_GT(plan.layouts[0].rate, 0) << name;
    EXPECT_LT(plan.layouts[0].utilization, 1) << name;
    EXPECT_GT(plan.layouts[0].utilization, 0) << name;
  }
  EXPECT_THROW(count_work("vit", {{"image", int64_t(224)}}, 100), Error) << "images of another size";
}

TEST(StepModel, DividesMemoryAsZeroSays) {
  Topology t = test::make_host(test::hgx_h200());
  const double p = double(known("llama-8b").parameters);
  StepPlan plan = plan_step(t, known("llama-8b"), h200(), batch(64, 2048, 1));
  ASSERT_EQ(plan.unknown, "");
  for (const StepEstimate& e : plan.layouts) {
    if (e.layout.tensor > 1 || e.layout.pipeline > 1) continue;
    const int zero = e.layout.zero;
    EXPECT_NEAR(e.memory.weights, 2 * p / (zero >= 3 ? 8 : 1), 1);
    EXPECT_NEAR(e.memory.gradients, 4 * p / (zero >= 2 ? 8 : 1), 1);
    EXPECT_NEAR(e.memory.optimizer, 12 * p / (zero >= 1 ? 8 : 1), 1);
    EXPECT_EQ(e.fits, zero >= 1) << zero;  // 18 bytes for each of 8e9 parameters are more than 141 GB
  }
  EXPECT_TRUE(plan.layouts[0].fits);
  EXPECT_FALSE(plan.layouts.back().fits);
  EXPECT_THAT(plan.str(100), testing::HasSubstr("does not fit"));
}

// Small on fast links: data parallel scales nearly as the GPUs; on PCIe it does not, and the reason is named.
TEST(StepModel, NamesTheBottleneck) {
  const ModelWork& gpt2 = known("gpt2-124m");
  StepPlan fast = plan_step(test::make_host(test::hgx_h200()), gpt2, h200(), batch(256, 1024));
  StepEstimate one = estimate_single(gpt2, h200(), batch(32, 1024, 32));
  EXPECT_GT(fast.layouts[0].rate, 0.9 * 8 * one.rate);
  EXPECT_LE(fast.layouts[0].rate, 8.2 * one.rate);
  EXPECT_THAT(fast.layouts[0].bottleneck, testing::HasSubstr("matrix products"));

  const GpuSpec geforce = gpu_spec("NVIDIA GeForce RTX 4090");
  Topology slow = test::make_host(test::pcie_box("NVIDIA GeForce RTX 4090", 89, 8, 4));
  StepPlan plan = plan_step(slow, known("gpt2-1.5b"), geforce, batch(8, 1024, 1));
  bool named = false;
  for (const StepEstimate& e : plan.layouts)
    named |= e.layout.zero == 1 && e.bottleneck.find("between replicas") != std::string::npos;
  EXPECT_TRUE(named) << plan.str(20);
}

// Sums of the gradients of ZeRO 0 on eight H200: 4 bytes for each parameter in buckets of 25 MiB over NVLS, which take
// 25 us and 1 / (0.83 x 370.8 x 14/9 GB/s) x 14/8 of their bytes each.
TEST(StepModel, CommunicationFollowsTheCostModel) {
  const ModelWork& gpt2 = known("gpt2-1.5b");
  StepPlan plan = plan_step(test::make_host(test::hgx_h200()), gpt2, h200(), batch(64, 1024, 8));
  double bytes = 4 * double(gpt2.parameters), buckets = std::ceil(bytes / (25 << 20));
  double bus = 0.83 * 370.8 * 14 / 9, expected = (buckets * 25 + bytes * 14 / 8 / (bus * 1000)) / 1000;
  for (const StepEstimate& e : plan.layouts)
    if (e.layout.data == 8 && e.layout.zero == 0) {
      EXPECT_NEAR(e.communication_ms / expected, 1, 0.01);
    }
}

TEST(StepModel, SaysWhatItDoesNotKnow) {
  EXPECT_THAT(
      plan_step(test::make_host(test::hgx_h200()), known("gpt2-124m"), gpu_spec("Unheard of"), batch(8, 1024)).unknown,
      testing::HasSubstr("peak"));
  Topology two = test::make_cluster(test::make_host(test::hgx_h200()), 2);
  EXPECT_THAT(plan_step(two, known("gpt2-124m"), h200(), batch(16, 1024)).unknown, testing::HasSubstr("NIC"));
  EXPECT_THROW(plan_step(two, known("gpt2-124m"), h200(), batch(0, 1024)), Error);
}

}  // namespace
}  // namespace xylem
