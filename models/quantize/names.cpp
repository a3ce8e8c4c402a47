// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>

#include "models/quantize/quantize.h"

namespace xylem::quantize {
namespace {
template <class E>
E parse(const char* what, const std::string& name, std::initializer_list<std::pair<const char*, E>> values) {
  std::string choices;
  for (auto& [text, value] : values) {
    if (name == text) return value;
    choices += std::string(choices.empty() ? "" : ", ") + text;
  }
  XY_FAIL("there is no ", what, " '", name, "'; choose one of ", choices);
}
}  // namespace

Observer parse_observer(const std::string& name) {
  return parse<Observer>("observer", name,
                         {{"minmax", Observer::minmax},
                          {"moving_average", Observer::moving_average},
                          {"percentile", Observer::percentile},
                          {"entropy", Observer::entropy},
                          {"mse", Observer::mse}});
}
Placement parse_placement(const std::string& name) {
  return parse<Placement>("placement", name, {{"trt", Placement::trt}, {"ort", Placement::ort}});
}
BatchNorms parse_batch_norms(const std::string& name) {
  return parse<BatchNorms>("treatment of batch norms", name,
                           {{"fold", BatchNorms::fold}, {"freeze", BatchNorms::freeze}, {"train", BatchNorms::train}});
}

}  // namespace xylem::quantize
