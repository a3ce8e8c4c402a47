// SPDX-License-Identifier: Apache-2.0
// A small MobileNet (Howard et al. 2017): depthwise separable convolutions, here for small images. Its narrow depthwise
// filters are what 8-bit arithmetic hurts most.
#pragma once
#include <vector>

#include "models/nn/layers.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

struct MobileNetConfig {
  int64_t channels = 1, classes = 10, width = 16, blocks = 2, stages = 3;
  void list(OptionTable& table);
};

struct MobileNet : Classifier {
  using Config = MobileNetConfig;
  // 3x3 depthwise, then 1x1, each with batch norm and relu.
  struct Block : Module {
    Conv2d depthwise;
    BatchNorm2d bn1;
    Conv2d pointwise;
    BatchNorm2d bn2;
    Block(int64_t in, int64_t out, int stride);
    XY_MEMBERS(depthwise, bn1, pointwise, bn2)
    Tensor operator()(const Tensor& x) const { return relu(bn2(pointwise(relu(bn1(depthwise(x)))))); }
  };

  Config config;
  Conv2d stem;
  BatchNorm2d bn;
  std::vector<Block> blocks;
  GlobalAvgPool pool;
  Linear head;
  explicit MobileNet(const Config& config);
  XY_MEMBERS(stem, bn, blocks, pool, head)

  int64_t classes() const override { return config.classes; }
  Tensor example() const override { return zeros({1, config.channels, 32, 32}); }
  Tensor forward(const Tensor& images) override;
};

}  // namespace xylem::zoo
