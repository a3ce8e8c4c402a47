// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/plan.h"

#include <utility>
#include <vector>

namespace xylem::pointwise {

Tensor empty_output(const Shape& shape, DType dtype, std::initializer_list<const Tensor*> operands) {
  Device device = (*operands.begin())->device();
  for (const Tensor* t : operands) {
    if (t->shape() != shape) continue;
    if (t->is_contiguous()) break;
    if (t->is_dense()) return empty_strided(shape, t->strides(), dtype, device);
  }
  return empty(shape, dtype, device);
}

OpSpec& unary_spec(const char* name, std::function<Tensor(const Tensor&)> call, double low, double high) {
  return (new OpSpec(name))
      ->flops([](std::span<const Tensor> inputs, std::span<const Tensor>) { return double(inputs[0].numel()); })
      .samples([=] {
        std::vector<Sample> samples;
        for (auto& [label, shape] : std::initializer_list<std::pair<const char*, Shape>>{{"usual", {4, 6, 8}},
                                                                                         {"odd", {3, 5, 7}},
                                                                                         {"long", {1029}},
                                                                                         {"one", {1}},
                                                                                         {"scalar", {}},
                                                                                         {"empty", {2, 0, 3}}})
          samples.push_back({label, {sample_uniform(shape, low, high)}, [call](const Tensors& t) -> Tensors {
                               return {call(t[0])};
                             }});
        return samples;
      });
}

}  // namespace xylem::pointwise
