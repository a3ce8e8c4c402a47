// SPDX-License-Identifier: Apache-2.0
// What the two-operand operations share: promotion, broadcasting, type dispatch and samples.
#pragma once
#include "ops/elementwise/pointwise.h"

namespace xylem::pointwise {

// Arithmetic runs in the float types and in i64; other integers and bool are widened to i64 and narrowed back.
template <class F>
decltype(auto) visit_arithmetic(DType t, F&& f) {
  if (t == i64) return f(Tag<int64_t>{});
  return visit_float(t, f);
}
inline DType arithmetic_dtype(DType t) { return is_float(t) ? t : i64; }

// f(a, b), broadcast, in the operands' common type. Not recorded.
template <class F>
Tensor compute_binary(const F& f, const Tensor& a, const Tensor& b) {
  DType t = a.dtype(), wide = arithmetic_dtype(t);
  Tensor x = a.detach().to(wide), y = b.detach().to(wide);
  Tensor out = empty_output(broadcast(x.shape(), y.shape()), wide, {&x, &y});
  visit_arithmetic(wide, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run<T, T, T>(f, {&out, &x, &y});
  });
  return out.to(t);
}

// Operands of one shape, row, column and channel broadcasts, a scalar, and empty ones.
inline std::vector<Sample> binary_samples(Tensor (*f)(const Tensor&, const Tensor&), double low, double high) {
  std::vector<Sample> samples;
  auto add = [&](const char* name, const Shape& a, const Shape& b) {
    samples.push_back({name,
                       {sample_uniform(a, low, high, 1), sample_uniform(b, low, high, 2)},
                       [f](const Tensors& t) -> Tensors { return {f(t[0], t[1])}; }});
  };
  add("same", {4, 8}, {4, 8});
  add("odd", {3, 5, 7}, {3, 5, 7});
  add("row", {6, 16}, {16});
  add("column", {5, 1}, {5, 9});
  add("outer", {4, 1}, {3});
  add("channel", {2, 3, 4, 4}, {3, 1, 1});
  add("scalar", {}, {2, 3});
  add("one", {1}, {1});
  add("empty", {0, 3}, {3});
  return samples;
}
inline double one_per_output(std::span<const Tensor>, std::span<const Tensor> out) { return double(out[0].numel()); }

}  // namespace xylem::pointwise
