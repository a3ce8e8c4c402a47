// SPDX-License-Identifier: Apache-2.0
#include "models/quantize/places.h"

#include <fnmatch.h>

namespace xylem::quantize {
namespace {

template <class L>
Layer weighted(const std::string& name, Kind kind, L& l) {
  return {name, kind, {&l.input_quantizer}, &l.weight_quantizer, l.weight};
}

}  // namespace

std::vector<Layer> layers_of(Module& model) {
  std::vector<Layer> all;
  for (auto& [name, m] : model.modules()) {
    if (auto* l = dynamic_cast<Linear*>(m)) all.push_back(weighted(name, Kind::linear, *l));
    if (auto* l = dynamic_cast<Conv2d*>(m)) {
      all.push_back(weighted(name, Kind::conv, *l));
      all.back().groups = l->args.groups;
    }
    if (auto* l = dynamic_cast<ConvTranspose2d*>(m)) all.push_back(weighted(name, Kind::conv_transpose, *l));
    if (auto* l = dynamic_cast<Add*>(m)) all.push_back({name, Kind::add, {&l->skip_quantizer, &l->branch_quantizer}});
    if (auto* l = dynamic_cast<MatMul*>(m)) all.push_back({name, Kind::matmul, {&l->a_quantizer, &l->b_quantizer}});
    if (auto* l = dynamic_cast<AvgPool2d*>(m)) all.push_back({name, Kind::pool, {&l->input_quantizer}});
    if (auto* l = dynamic_cast<GlobalAvgPool*>(m)) all.push_back({name, Kind::pool, {&l->input_quantizer}});
    if (auto* l = dynamic_cast<AttentionProducts*>(m))
      all.push_back({name, Kind::attention, {&l->q_quantizer, &l->k_quantizer, &l->v_quantizer, &l->p_quantizer}});
  }
  return all;
}

bool Layer::active() const {
  for (QuantizerSlot* slot : slots())
    if (*slot && slot->on) return true;
  return false;
}
void Layer::enable(bool on) const {
  for (QuantizerSlot* slot : slots()) slot->on = on;
}

bool matches(const std::string& name, const std::string& pattern) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 || name.starts_with(pattern + ".");
}

}  // namespace xylem::quantize
