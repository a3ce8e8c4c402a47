// SPDX-License-Identifier: Apache-2.0
// A tensor plus, times or divided by a number.
#include "ops/elementwise/binary.h"

namespace xylem {
namespace {

template <class A>
struct AddScalar {
  A b;
  XY_HD A operator()(A a) const { return a + b; }
};
template <class A>
struct MulScalar {
  A b;
  XY_HD A operator()(A a) const { return a * b; }
};

const OpSpec& kAdd = pointwise::unary_spec(
                         "add_scalar", [](const Tensor& x) { return add(x, 0.7); }, -3, 3)
                         .onnx(pointwise::lower_with_scalar("Add"))
                         .double_backward();
const OpSpec& kMul = pointwise::unary_spec(
                         "mul_scalar", [](const Tensor& x) { return mul(x, -1.3); }, -3, 3)
                         .onnx(pointwise::lower_with_scalar("Mul"))
                         .double_backward();

Tensor operand(const Tensor& a, Scalar b) { return is_float(a.dtype()) || b.is_integer() ? a : a.to(f32); }

template <template <class> class F>
Tensor compute(const Tensor& a, Scalar b) {
  Tensor x = a.detach().to(pointwise::arithmetic_dtype(a.dtype()));
  Tensor out = pointwise::empty_output(x.shape(), x.dtype(), {&x});
  pointwise::visit_arithmetic(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    pointwise::run<T, T>(F<A>{b.to<A>()}, {&out, &x});
  });
  return out.to(a.dtype());
}

}  // namespace

Tensor add(const Tensor& a, Scalar b) {
  OpScope scope(kAdd);
  Tensor x = operand(a, b);
  return record(kAdd, compute<AddScalar>(x, b), {x}, {{"value", b.to<double>()}},
                [](const Tensor& dy, const Wanted&) -> Tensors { return {dy}; });
}

Tensor mul(const Tensor& a, Scalar b) {
  OpScope scope(kMul);
  Tensor x = operand(a, b);
  return record(kMul, compute<MulScalar>(x, b), {x}, {{"value", b.to<double>()}},
                [b](const Tensor& dy, const Wanted&) -> Tensors { return {mul(dy, b)}; });
}

Tensor div(const Tensor& a, Scalar b) {
  if (is_float(a.dtype())) return mul(a, 1 / b.to<double>());
  return div(a, full({}, b, f32, a.device()));
}

}  // namespace xylem
