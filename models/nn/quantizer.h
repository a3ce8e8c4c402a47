// SPDX-License-Identifier: Apache-2.0
// Where a layer's tensors may be quantized. The layers below hold empty slots, which cost nothing and have no state;
// quantize::prepare() (models/quantize/quantize.h) fills them.
#pragma once
#include <memory>

#include "models/nn/module.h"

namespace xylem {

// Stands between a tensor and the layer that reads it. Its tensors stay f32.
struct Quantizer : Module {
  virtual Tensor operator()(const Tensor& x) const = 0;
  bool keeps_f32() const override { return true; }
};

// Holds a quantizer, shared where several layers read one tensor. Switched off, x passes unchanged.
struct QuantizerSlot {
  std::shared_ptr<Quantizer> quantizer;
  bool on = true;
  explicit operator bool() const { return quantizer != nullptr; }
  Quantizer& operator*() const { return *quantizer; }
};
inline Tensor quantized(const Tensor& x, const QuantizerSlot& slot) {
  return slot.quantizer && slot.on ? (*slot)(x) : x;
}

}  // namespace xylem
