// SPDX-License-Identifier: Apache-2.0
// The layers of a model that have slots for quantizers. Internal to models/quantize.
#pragma once
#include <string>
#include <vector>

#include "models/nn/layers.h"

namespace xylem::quantize {

enum class Kind { linear, conv, conv_transpose, add, matmul, pool, attention };

struct Layer {
  std::string name;
  Kind kind;
  std::vector<QuantizerSlot*> inputs;
  QuantizerSlot* weight_slot = nullptr;
  Tensor weight = {};
  int groups = 1;

  std::vector<QuantizerSlot*> slots() const {
    auto all = inputs;
    if (weight_slot) all.push_back(weight_slot);
    return all;
  }
  bool weighted() const { return weight.defined(); }
  bool active() const;  // whether a slot holds a quantizer that is on
  void enable(bool on) const;
};

std::vector<Layer> layers_of(Module& model);

// Whether a layer's name fits a pattern with * and ?, or lies below the module that it names.
bool matches(const std::string& name, const std::string& pattern);

}  // namespace xylem::quantize
