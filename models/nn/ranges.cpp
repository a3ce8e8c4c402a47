// SPDX-License-Identifier: Apache-2.0
#include "models/nn/ranges.h"

#include <cstdlib>
#include <string_view>

#include "distributed/group/group.h"
#include "ops/ops.h"
#include "ops/quant/quant.h"

namespace xylem {

namespace {
constexpr std::string_view kPrefix = "amax.";
}

void put_ranges(const LayerRanges& ranges, std::map<std::string, std::string>& extra) {
  for (const auto& [key, seen] : ranges) extra[std::string(kPrefix) + key] = detail::concat(seen);
}
LayerRanges ranges_in(const std::map<std::string, std::string>& extra) {
  LayerRanges ranges;
  for (const auto& [key, text] : extra)
    if (key.starts_with(kPrefix)) ranges[key.substr(kPrefix.size())] = std::strtod(text.c_str(), nullptr);
  return ranges;
}

RangeObserver::RangeObserver(const Module& model) {
  for (const NamedTensor& t : state_dict(model))
    if (size_t dot = t.name.rfind('.'); dot != std::string::npos)
      layers_[t.tensor.ptr().get()] = {t.tensor.ptr(), t.name.substr(0, dot)};
}

const std::string* RangeObserver::layer_of(const Tensor& t) const {
  auto it = layers_.find(t.ptr().get());
  return it == layers_.end() || it->second.first.expired() ? nullptr : &it->second.second;
}

void RangeObserver::on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                          const Attrs&) {
  std::string layer;
  Tensors activations;
  for (const Tensor& t : inputs) {
    if (!t.defined()) continue;
    const std::string* owner = layer_of(t);
    if (!owner)
      activations.push_back(t);
    else if (layer.empty())
      layer = *owner;
  }
  if (layer.empty()) return;
  // The scale of a weight that is still trained may have been made anew.
  const bool quantized_weight = spec.is(OpRole::quantizer) && layer_of(inputs[0]);
  if (activations.empty() || quantized_weight) {
    for (const Tensor& t : outputs) layers_[t.ptr().get()] = {t.ptr(), layer};
    return;
  }
  NoGrad guard;
  for (const Tensor& t : activations) add(layer + ":input", t);
  for (const Tensor& t : outputs) add(layer, t);
}

void RangeObserver::add(const std::string& key, const Tensor& t) {
  if (!is_float(t.dtype()) || t.numel() == 0) return;
  Tensor top = abs_max(t.detach()).to(f32);
  auto [it, fresh] = largest_.try_emplace(key, top);
  if (!fresh) it->second = maximum(it->second, top);
}

LayerRanges RangeObserver::ranges(const Group* group) const {
  if (largest_.empty()) return {};
  NoGrad guard;
  Tensors all;
  for (const auto& [key, top] : largest_) all.push_back(top);
  Tensor values = stack(all);
  if (group && group->size() > 1) group->all_reduce(values, ReduceOp::max).wait();
  const std::vector<double> host = values.to_vector<double>();
  LayerRanges ranges;
  for (const auto& [key, top] : largest_) ranges[key] = host[ranges.size()];
  return ranges;
}

}  // namespace xylem
