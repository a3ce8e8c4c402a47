// SPDX-License-Identifier: Apache-2.0
// Multi-layer perceptron: relu between fully connected layers.
#pragma once
#include <vector>

#include "models/nn/layers.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

struct MlpConfig {
  int64_t in = 784, hidden = 256, layers = 2, classes = 10;
  double dropout = 0;
  void list(OptionTable& table) {
    table("in", in, "values per input, all dimensions but the first together");
    table("hidden", hidden, "size of the hidden layers");
    table("layers", layers, "number of hidden layers");
    table("classes", classes, "number of classes");
    table("dropout", dropout, "probability of dropping a hidden value");
  }
};

struct Mlp : Classifier {
  using Config = MlpConfig;
  std::vector<Linear> layers;
  Dropout drop;
  explicit Mlp(const Config& config) : drop(config.dropout) {
    int64_t width = config.in;
    for (int64_t i = 0; i < config.layers; ++i, width = config.hidden) layers.emplace_back(width, config.hidden);
    layers.emplace_back(width, config.classes);
  }
  XY_MEMBERS(layers, drop)

  int64_t classes() const override { return layers.back().weight.size(0); }
  Tensor example() const override { return zeros({1, layers.front().weight.size(1)}); }
  Tensor forward(const Tensor& input) override {
    Tensor x = input.to(layers[0].weight.dtype()).flatten(1);
    for (size_t i = 0; i + 1 < layers.size(); ++i) x = drop(relu(layers[i](x)));
    return layers.back()(x);
  }
};

}  // namespace xylem::zoo
