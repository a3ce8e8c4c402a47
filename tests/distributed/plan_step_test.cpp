// SPDX-License-Identifier: Apache-2.0
// The step model against what one H200 did, and against arithmetic of its own.
#include <gmock/gmock.h>

#include "core/util/check.h"
#include "distributed/plan/step_model.h"
#include "tests/distributed/plan_machines.h"

namespace xylem {
namespace {

constexpr double kGiB = double(1 << 30);

GpuSpec h200() {
  GpuSpec g = gpu_spec("NVIDIA H200");
  g.peak_flops = 989.4e12;
  return g;
}
StepOptions batch(int64_t global, int64_t sequence, int64_t micro = 0) {
  StepOptions o;
  o.global_batch = global;
  o.sequence = sequence;
  o.micro_batch = micro;
  return o;
}

TEST(StepModel, KnowsTheModels) {
  EXPECT_EQ(known_model("gpt2-124m")->parameters(), 124439808);  // as published
  EXPECT_EQ(known_model("gpt2-1.5b")->parameters(), 1557611200);
  EXPECT_EQ(known_model("llama-8b")->parameters(), 8030261248);
  EXPECT_EQ(known_model("resnet18")->parameters(), 11689512);
  EXPECT_EQ(known_model("resnet50")->parameters(), 25557032);
  EXPECT_NEAR(known_model("resnet50")->forward_flops(1), 2 * 4.09e9, 0.01e9);
  EXPECT_FALSE(known_model("gpt9"));
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
    StepEstimate e = estimate_single(*known_model(r.model), h200(), batch(r.batch, r.sequence, r.batch));
    EXPECT_NEAR(e.rate / r.rate, 1, r.tolerance) << r.model << " x" << r.batch;
  }
}

TEST(StepModel, MeetsTheMemoryOfOneH200) {
  for (auto [sequences, gib] : {std::pair{32, 17.35}, {64, 32.61}}) {
    Memory m = estimate_single(*known_model("gpt2-124m"), h200(), batch(sequences, 1024, sequences)).memory;
    EXPECT_NEAR(m.total() / kGiB / gib, 1, 0.05) << sequences;
    EXPECT_NEAR(m.weights, 2 * 124439808.0, 1);
    EXPECT_NEAR(m.optimizer, 12 * 124439808.0, 1);
  }
}

// One H200: PyTorch's rate, our own memory (single_gpu_h200.json). One A100 80 GB: NVIDIA's published figure
// (DeepLearningExamples, ResNet-50 v1.5, AMP). None of the model's shares was fitted to a convolutional network.
TEST(StepModel, MeetsResNet50) {
  ModelShape resnet = *known_model("resnet50");
  StepEstimate e = estimate_single(resnet, h200(), batch(256, 1, 256));
  EXPECT_NEAR(e.rate / 6507, 1, 0.03);
  EXPECT_NEAR(e.memory.total() / kGiB / 10.77, 1, 0.05);
  EXPECT_THAT(e.bottleneck, testing::HasSubstr("device memory"));
  GpuSpec a100 = gpu_spec("A100-SXM4-80GB");
  a100.peak_flops = 312e12;
  EXPECT_NEAR(estimate_single(resnet, a100, batch(256, 1, 256)).rate / 2470, 1, 0.06);
}

TEST(StepModel, SmallPassesWaitForTheirLaunches) {
  ModelShape tiny{.name = "tiny",
                  .layers = 4,
                  .width = 128,
                  .heads = 4,
                  .kv_heads = 4,
                  .hidden = 512,
                  .vocab = 256,
                  .context = 128};
  StepEstimate e = estimate_single(tiny, h200(), batch(16, 128, 16));
  EXPECT_NEAR(e.compute_ms, 4 * 30 * 0.003, 1e-9);
  EXPECT_THAT(e.bottleneck, testing::HasSubstr("launches"));
}

TEST(StepModel, LaysConvolutionalNetworksOutAsReplicas) {
  StepPlan plan = plan_step(test::make_host(test::hgx_h200()), *known_model("resnet50"), h200(), batch(2048, 1));
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
TEST(StepModel, ShapesSmallResNets) {
  ModelShape m = resnet_shape(
      "small", {.blocks = {2}, .small_images = true, .channels = 1, .classes = 10, .width = 16, .image = 28});
  EXPECT_EQ(m.parameters(), 16 * (9 + 2) + 4 * 16 * (16 * 9 + 2) + 10 * 17);
  EXPECT_EQ(m.forward_flops(1), 2.0 * (28 * 28 * (16 * 9 + 4 * 16 * 16 * 9) + 160));
  // Outputs of 5 convolutions, 5 ReLUs, the image.
  EXPECT_EQ(m.images->kept, 28.0 * 28 * (10 * 16 + 1));
  EXPECT_THROW(resnet_shape("none", {.blocks = {2}, .image = 4}), Error);
}

TEST(StepModel, DividesMemoryAsZeroSays) {
  Topology t = test::make_host(test::hgx_h200());
  const double p = double(known_model("llama-8b")->parameters());
  StepPlan plan = plan_step(t, *known_model("llama-8b"), h200(), batch(64, 2048, 1));
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
  ModelShape gpt2 = *known_model("gpt2-124m");
  StepPlan fast = plan_step(test::make_host(test::hgx_h200()), gpt2, h200(), batch(256, 1024));
  StepEstimate one = estimate_single(gpt2, h200(), batch(32, 1024, 32));
  EXPECT_GT(fast.layouts[0].rate, 0.9 * 8 * one.rate);
  EXPECT_LE(fast.layouts[0].rate, 8.2 * one.rate);
  EXPECT_THAT(fast.layouts[0].bottleneck, testing::HasSubstr("matrix products"));

  GpuSpec geforce = gpu_spec("NVIDIA GeForce RTX 4090");
  geforce.peak_flops = 165.2e12;
  Topology slow = test::make_host(test::pcie_box("NVIDIA GeForce RTX 4090", 89, 8, 4));
  StepPlan plan = plan_step(slow, *known_model("gpt2-1.5b"), geforce, batch(8, 1024, 1));
  bool named = false;
  for (const StepEstimate& e : plan.layouts)
    named |= e.layout.zero == 1 && e.bottleneck.find("between replicas") != std::string::npos;
  EXPECT_TRUE(named) << plan.str(20);
}

// Sums of the gradients of ZeRO 0 on eight H200: 4 bytes for each parameter in buckets of 25 MiB over NVLS, which take
// 25 us and 1 / (0.83 x 370.8 x 14/9 GB/s) x 14/8 of their bytes each.
TEST(StepModel, CommunicationFollowsTheCostModel) {
  ModelShape gpt2 = *known_model("gpt2-1.5b");
  StepPlan plan = plan_step(test::make_host(test::hgx_h200()), gpt2, h200(), batch(64, 1024, 8));
  double bytes = 4 * double(gpt2.parameters()), buckets = std::ceil(bytes / (25 << 20));
  double bus = 0.83 * 370.8 * 14 / 9, expected = (buckets * 25 + bytes * 14 / 8 / (bus * 1000)) / 1000;
  for (const StepEstimate& e : plan.layouts)
    if (e.layout.data == 8 && e.layout.zero == 0) {
      EXPECT_NEAR(e.communication_ms / expected, 1, 0.01);
    }
}

TEST(StepModel, SaysWhatItDoesNotKnow) {
  EXPECT_THAT(
      plan_step(test::make_host(test::hgx_h200()), *known_model("gpt2-124m"), gpu_spec("Unheard of"), batch(8, 1024))
          .unknown,
      testing::HasSubstr("peak"));
  Topology two = test::make_cluster(test::make_host(test::hgx_h200()), 2);
  EXPECT_THAT(plan_step(two, *known_model("gpt2-124m"), h200(), batch(16, 1024)).unknown, testing::HasSubstr("NIC"));
  EXPECT_THROW(plan_step(two, *known_model("gpt2-124m"), h200(), batch(0, 1024)), Error);
}

}  // namespace
}  // namespace xylem
