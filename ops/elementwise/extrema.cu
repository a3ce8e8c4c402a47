// SPDX-License-Identifier: Apache-2.0
// maximum, minimum and pow of two tensors.
#include "ops/elementwise/binary.h"

namespace xylem {
namespace {

// A NaN on either side wins.
template <bool kMax>
struct Extremum {
  template <class A>
  XY_HD A operator()(A a, A b) const {
    return (kMax ? a > b : a < b) || a != a ? a : b;
  }
};
// The part of the gradient that goes to a.
template <bool kMax>
struct Share {
  template <class A>
  XY_HD A operator()(A a, A b) const {
    return a == b ? A(0.5) : (kMax ? a > b : a < b) ? A(1) : A(0);
  }
};
// Exact while it fits; of a negative exponent what remains of the fraction, towards zero.
template <class A>
XY_HD A whole_power(A base, A exponent) {
  if (exponent < 0) return base == 1 || (base == -1 && exponent % 2 == 0) ? A(1) : base == -1 ? A(-1) : A(0);
  uint64_t result = 1, square = uint64_t(base);
  for (; exponent > 0; exponent /= 2, square *= square)
    if (exponent % 2 == 1) result *= square;
  return A(result);
}
struct Pow {
  template <class A>
  XY_HD A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>)
      return whole_power(a, b);
    else
      return math::pow(a, b);
  }
};

const OpSpec& kMaximum =
    (new OpSpec("maximum"))
        ->double_backward()
        .onnx(pointwise::lower_binary("Max"))
        .imports("Max", pointwise::import_chain(maximum))
        .flops(pointwise::one_per_output)
        .samples([] {
          auto samples = pointwise::binary_samples(maximum, -2, 2);
          samples.push_back({"ties", {zeros({3}, f64), sample_uniform({2, 1}, 1, 2)}, [](const Tensors& t) -> Tensors {
                               return {maximum(t[0] + t[1], t[1] + t[0])};
                             }});
          return samples;
        });
const OpSpec& kMinimum = (new OpSpec("minimum"))
                             ->double_backward()
                             .onnx(pointwise::lower_binary("Min"))
                             .imports("Min", pointwise::import_chain(minimum))
                             .flops(pointwise::one_per_output)
                             .samples([] { return pointwise::binary_samples(minimum, -2, 2); });
const OpSpec& kPow = (new OpSpec("pow"))
                         ->double_backward()
                         .onnx(pointwise::lower_binary("Pow"))
                         .imports("Pow", pointwise::import_binary(pow))
                         .flops(pointwise::one_per_output)
                         .samples([] { return pointwise::binary_samples(pow, 0.5, 2); });

template <bool kMax>
Tensor extremum(const OpSpec& spec, const Tensor& a, const Tensor& b) {
  OpScope scope(spec);
  DType t = promote(a.dtype(), b.dtype());
  Tensor x = a.to(t), y = b.to(t);
  return record(spec, pointwise::compute_binary(Extremum<kMax>{}, x, y), {x, y}, {},
                [x = Saved(x), y = Saved(y)](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor a = x.get(), b = y.get(), da, db;
                  if (want[0]) da = sum_to(dy * pointwise::compute_binary(Share<kMax>{}, a, b), a.shape());
                  if (want[1]) db = sum_to(dy * pointwise::compute_binary(Share<kMax>{}, b, a), b.shape());
                  return {da, db};
                });
}

}  // namespace

Tensor maximum(const Tensor& a, const Tensor& b) { return extremum<true>(kMaximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return extremum<false>(kMinimum, a, b); }

Tensor pow(const Tensor& a, const Tensor& b) {
  OpScope scope(kPow);
  DType t = promote(a.dtype(), b.dtype());
  Tensor x = a.to(t), y = b.to(t), p = pointwise::compute_binary(Pow{}, x, y);
  return record(kPow, p, {x, y}, {},
                [x = Saved(x), y = Saved(y), p = Saved::output(p)](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor a = x.get(), b = y.get(), da, db;
                  if (want[0]) da = sum_to(dy * b * pow(a, b - 1.0), a.shape());
                  // 0^b does not move with b, although log(0) is infinite.
                  if (want[1]) db = sum_to(dy * p.get() * log(where(eq(a, 0), ones_like(a), a)), b.shape());
                  return {da, db};
                });
}

}  // namespace xylem
