// SPDX-License-Identifier: Apache-2.0
// U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm: images to one class per pixel.
#pragma once
#include <utility>
#include <vector>

#include "models/nn/layers.h"
#include "models/nn/sequential.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

struct UnetConfig {
  int64_t channels = 3, classes = 2, width = 64, depth = 4;
  bool bilinear = false;
  void list(OptionTable& table);
};

struct Unet : ZooModel {
  using Config = UnetConfig;
  struct Up : Module {
    Sequential grow, conv;
    Up(int64_t in, int64_t out, bool bilinear);
    XY_MEMBERS(grow, conv)
  };

  Config config;
  Sequential stem;
  std::vector<Sequential> down;
  std::vector<Up> up;
  Conv2d head;
  explicit Unet(const Config& config);
  XY_MEMBERS(stem, down, up, head)

  RecordSpec::Task task() const override { return RecordSpec::Task::segmentation; }
  int64_t classes() const override { return config.classes; }
  Tensor example() const override;
  // [N, channels, H, W] -> [N, classes, H, W]; H and W multiples of 2^depth.
  Tensor forward(const Tensor& images) override;
  Tensor classes_last(const Tensor& logits) const override { return logits.permute({0, 2, 3, 1}); }
};

}  // namespace xylem::zoo
