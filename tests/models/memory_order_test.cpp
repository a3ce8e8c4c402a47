// SPDX-License-Identifier: Apache-2.0
// A network that is given channels-last images stays channels-last, forwards and backwards.
#include <gtest/gtest.h>

#include <map>

#include "core/autograd/autograd.h"
#include "core/random/rng.h"
#include "models/zoo/resnet.h"

namespace xylem {
namespace {

bool channels_last(const Tensor& t) { return t.permute({0, 2, 3, 1}).is_contiguous(); }

// Looks at every image that a result of the forward pass holds, and at its gradient.
class Images : public OpObserver {
 public:
  void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor>, const Attrs&) override {
    for (const Tensor& out : outputs) {
      if (out.rank() != 4 || out.size(2) * out.size(3) == 1) continue;
      ++results[channels_last(out)];
      if (out.requires_grad() && !out.is_leaf())
        out.register_hook(
            [this, name = spec.name, shape = out.shape(), last = channels_last(out)](const Tensor& gradient) {
              ++gradients[channels_last(gradient)];
              EXPECT_TRUE(channels_last(gradient) || !last) << "gradient of " << name << "'s result " << shape;
              return Tensor();
            });
    }
  }
  std::map<bool, int> results, gradients;
};

void check(Device device, DType dtype) {
  rng::seed(3);
  zoo::ResNet model({.blocks = {2, 1}, .bottleneck = true, .classes = 8, .width = 8});
  model.to(device);
  model.to(dtype);
  Tensor images = sample_normal({4, 32, 32, 3}).to(dtype).to(device).permute({0, 3, 1, 2});
  Images seen;
  Tensor loss = model.loss(images, sample_index({4}, 8).to(device));
  if (device.is_cuda()) {  // convolutions on the CPU give rows of channels
    EXPECT_EQ(seen.results[false], 0);
  }
  EXPECT_GT(seen.results[true], 30);
  loss.backward();
  EXPECT_GT(seen.gradients[true], 30);
}

TEST(MemoryOrder, ResNetStaysChannelsLast) { check(Device::cpu(), f32); }
TEST(MemoryOrder, ResNetStaysChannelsLastCuda) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  check(Device::cuda(0), bf16);
}

}  // namespace
}  // namespace xylem
