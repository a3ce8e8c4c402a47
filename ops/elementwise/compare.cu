// SPDX-License-Identifier: Apache-2.0
// Comparisons. Which orders count as true is a run-time value, equal for all elements: one kernel per type serves them
// all.
#include "ops/elementwise/binary.h"

namespace xylem {
namespace {

struct Compare {
  bool less, equal, greater;
  template <class A>
  XY_HD bool operator()(A a, A b) const {
    return ((a < b) & less) | ((a == b) & equal) | ((a > b) & greater);
  }
};
template <class B>
struct CompareScalar {
  Compare compare;
  B b;
  template <class A>
  XY_HD bool operator()(A a) const {
    return compare(B(a), b);
  }
};
constexpr Compare kEqual{false, true, false}, kLess{true, false, false}, kLessEqual{true, true, false},
    kGreater{false, false, true};

const OpSpec& compare_spec(const char* name, const char* onnx_operator, pointwise::BinaryCall f) {
  OpSpec& spec = *new OpSpec(name);
  spec.onnx(pointwise::lower_compare(onnx_operator)).imports(onnx_operator, pointwise::import_binary(f));
  return spec.not_differentiable().samples([f] {
    auto samples = pointwise::binary_samples(f, -2, 2);
    samples.push_back({"integers",
                       {sample_index({5, 6}, 3), sample_index({6}, 3, 2)},
                       [f](const Tensors& t) -> Tensors { return {f(t[0], t[1])}; }});
    return samples;
  });
}
const OpSpec& scalar_spec(const char* name, const char* onnx_operator, Tensor (*f)(const Tensor&, Scalar)) {
  return pointwise::unary_spec(
             name, [f](const Tensor& x) { return f(x, 0.5); }, -3, 3)
      .onnx(pointwise::lower_compare_scalar(onnx_operator))
      .not_differentiable();
}
const OpSpec& kEq = compare_spec("eq", "Equal", eq);
const OpSpec& kLt = compare_spec("lt", "Less", lt);
const OpSpec& kLe = compare_spec("le", "LessOrEqual", le);
const OpSpec& kEqScalar = scalar_spec("eq_scalar", "Equal", eq);
const OpSpec& kLtScalar = scalar_spec("lt_scalar", "Less", lt);
const OpSpec& kGtScalar = scalar_spec("gt_scalar", "Greater", gt);

Tensor compare(const OpSpec& spec, const Compare& f, const Tensor& a, const Tensor& b) {
  OpScope scope(spec);
  DType t = pointwise::arithmetic_dtype(promote(a.dtype(), b.dtype()));
  Tensor x = a.detach().to(t), y = b.detach().to(t);
  Tensor out = pointwise::empty_output(broadcast(x.shape(), y.shape()), boolean, {&x, &y});
  pointwise::visit_arithmetic(t, [&](auto tag) {
    using T = typename decltype(tag)::type;
    pointwise::run<bool, T, T>(f, {&out, &x, &y});
  });
  return record(spec, out, {a, b});
}

Tensor compare(const OpSpec& spec, const Compare& f, const Tensor& a, Scalar b) {
  OpScope scope(spec);
  Tensor x = a.detach().to(pointwise::arithmetic_dtype(a.dtype()));
  Tensor out = pointwise::empty_output(x.shape(), boolean, {&x});
  pointwise::visit_arithmetic(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    if constexpr (std::is_integral_v<T>) {
      if (!b.is_integer())  // an integer against a fraction
        return pointwise::run<bool, T>(CompareScalar<double>{f, b.to<double>()}, {&out, &x});
    }
    pointwise::run<bool, T>(CompareScalar<A>{f, b.to<A>()}, {&out, &x});
  });
  return record(spec, out, {a}, {{"value", b.to<double>()}});
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare(kEq, kEqual, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare(kLt, kLess, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare(kLe, kLessEqual, a, b); }
Tensor eq(const Tensor& a, Scalar b) { return compare(kEqScalar, kEqual, a, b); }
Tensor lt(const Tensor& a, Scalar b) { return compare(kLtScalar, kLess, a, b); }
Tensor gt(const Tensor& a, Scalar b) { return compare(kGtScalar, kGreater, a, b); }

}  // namespace xylem
