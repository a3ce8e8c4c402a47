// SPDX-License-Identifier: Apache-2.0
// The largest |x| that layers read and give: what an export in mixed precision chooses by.
//
//   RangeObserver observer(model);
//   for (auto& b : batches) model(b.input);
//   options.activation_amax = observer.ranges();
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/autograd/autograd.h"
#include "models/nn/module.h"

namespace xylem {

class Group;

// By layer, which is the module whose parameter an operation reads ("layers.0.attn.qkv"): what its operations gave; by
// "LAYER:input": what they read.
using LayerRanges = std::map<std::string, double>;

// As entries of what a checkpoint keeps beside its tensors, among others.
void put_ranges(const LayerRanges& ranges, std::map<std::string, std::string>& extra);
LayerRanges ranges_in(const std::map<std::string, std::string>& extra);

class RangeObserver : public OpObserver {
 public:
  explicit RangeObserver(const Module& model);
  void on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
             const Attrs& attrs) override;
  // Of this thread's operations so far; waits for the device. Collective with a group, whose ranks run the same layers:
  // the largest of all ranks.
  LayerRanges ranges(const Group* group = nullptr) const;

 private:
  const std::string* layer_of(const Tensor& t) const;
  void add(const std::string& key, const Tensor& t);

  // Parameters, buffers, and what is computed from them alone. An address may be used again.
  std::unordered_map<const TensorImpl*, std::pair<std::weak_ptr<TensorImpl>, std::string>> layers_;
  std::map<std::string, Tensor> largest_;  // f32 [] on the device
};

}  // namespace xylem
