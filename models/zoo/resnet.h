// SPDX-License-Identifier: Apache-2.0
// ResNet (He et al. 2016), with torchvision's names; bottlenecks stride in their 3x3 convolution (v1.5).
#pragma once
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "models/nn/layers.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

struct ResNetConfig {
  std::vector<int64_t> blocks = {2, 2, 2, 2};  // per stage; each stage but the first halves height and width
  bool bottleneck = false;
  bool small_images = false;  // begins with a 3x3 convolution and no pooling
  int64_t channels = 3, classes = 1000, width = 64;
  void list(OptionTable& table);  // what the published ones leave open: that which depends on the data
};

struct ResNet : Classifier {
  using Config = ResNetConfig;
  // conv1-bn1-relu-conv2-bn2, or with a bottleneck 1x1, 3x3, 1x1 and a fourfold widening.
  struct Block : Module {
    Conv2d conv1;
    BatchNorm2d bn1;
    Conv2d conv2;
    BatchNorm2d bn2;
    std::optional<Conv2d> conv3;
    std::optional<BatchNorm2d> bn3;
    std::optional<std::pair<Conv2d, BatchNorm2d>> downsample;
    Add add;
    Block(int64_t in, int64_t width, int stride, bool bottleneck);
    XY_MEMBERS(conv1, bn1, conv2, bn2, conv3, bn3, downsample, add)
    Tensor operator()(const Tensor& x) const;
  };

  Config config;
  Conv2d conv1;
  BatchNorm2d bn1;
  std::vector<Block> layer1, layer2, layer3, layer4;
  GlobalAvgPool pool;
  Linear fc;
  explicit ResNet(const Config& config);
  XY_MEMBERS(conv1, bn1, layer1, layer2, layer3, layer4, pool, fc)

  int64_t classes() const override { return config.classes; }
  Tensor example() const override { return zeros({1, config.channels, 32, 32}); }
  Tensor forward(const Tensor& images) override;
};

ResNetConfig resnet18_config();
ResNetConfig resnet50_config();

// A small residual network for small images (28x28 grey, 32x32 colour).
struct ResNetSmallConfig {
  int64_t channels = 1, classes = 10, width = 16, blocks = 1, stages = 3;
  ResNetConfig resnet() const;
  void list(OptionTable& table);
};

}  // namespace xylem::zoo
