// SPDX-License-Identifier: Apache-2.0
// A tensor plus or times a number.
#include "ops/elementwise/binary.h"

namespace xylem {
namespace {

struct AddScalar {
  double b;
  template <class A>
  XY_HD A operator()(A a) const {
    return a + A(b);
  }
};
struct MulScalar {
  double b;
  template <class A>
  XY_HD A operator()(A a) const {
    return a * A(b);
  }
};

const OpSpec& kAdd = pointwise::unary_spec(
                         "add_scalar", [](const Tensor& x) { return add(x, 0.7); }, -3, 3)
                         .onnx(pointwise::lower_with_scalar("Add"))
                         .double_backward();
const OpSpec& kMul = pointwise::unary_spec(
                         "mul_scalar", [](const Tensor& x) { return mul(x, -1.3); }, -3, 3)
                         .onnx(pointwise::lower_with_scalar("Mul"))
                         .double_backward();

// An integer tensor stays one if the number is whole.
Tensor operand(const Tensor& a, double b) {
  return is_float(a.dtype()) || (b == std::trunc(b) && std::abs(b) < 0x1p63) ? a : a.to(f32);
}

template <class F>
Tensor compute(const F& f, const Tensor& a) {
  Tensor x = a.detach().to(pointwise::arithmetic_dtype(a.dtype()));
  Tensor out = pointwise::empty_output(x.shape(), x.dtype(), {&x});
  pointwise::visit_arithmetic(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    pointwise::run<T, T>(f, {&out, &x});
  });
  return out.to(a.dtype());
}

}  // namespace

Tensor add(const Tensor& a, double b) {
  OpScope scope(kAdd);
  Tensor x = operand(a, b);
  return record(kAdd, compute(AddScalar{b}, x), {x}, {{"value", b}},
                [](const Tensor& dy, const Wanted&) -> Tensors { return {dy}; });
}

Tensor mul(const Tensor& a, double b) {
  OpScope scope(kMul);
  Tensor x = operand(a, b);
  return record(kMul, compute(MulScalar{b}, x), {x}, {{"value", b}},
                [b](const Tensor& dy, const Wanted&) -> Tensors { return {mul(dy, b)}; });
}

}  // namespace xylem
