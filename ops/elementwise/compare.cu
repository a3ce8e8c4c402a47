// SPDX-License-Identifier: Apache-2.0
// Comparisons. The kind is a run-time value, equal for all elements: one kernel per type serves them all.
#include "ops/elementwise/binary.h"

namespace xylem {
namespace {

enum class Order { eq, lt, le, gt };

template <class A>
XY_HD bool holds(Order order, A a, A b) {
  switch (order) {
    case Order::eq:
      return a == b;
    case Order::lt:
      return a < b;
    case Order::le:
      return a <= b;
    default:
      return a > b;
  }
}

struct Compare {
  Order order;
  template <class A>
  XY_HD bool operator()(A a, A b) const {
    return holds(order, a, b);
  }
};
struct CompareScalar {
  Order order;
  double b;
  template <class A>
  XY_HD bool operator()(A a) const {
    if constexpr (std::is_integral_v<A>)
      return holds(order, double(a), b);
    else
      return holds(order, a, A(b));
  }
};

const OpSpec& compare_spec(const char* name, Tensor (*f)(const Tensor&, const Tensor&)) {
  return (new OpSpec(name))->not_differentiable().samples([f] {
    auto samples = pointwise::binary_samples(f, -2, 2);
    samples.push_back({"integers",
                       {sample_index({5, 6}, 3), sample_index({6}, 3, 2)},
                       [f](const Tensors& t) -> Tensors { return {f(t[0], t[1])}; }});
    return samples;
  });
}
const OpSpec& scalar_spec(const char* name, Tensor (*f)(const Tensor&, double)) {
  return pointwise::unary_spec(
             name, [f](const Tensor& x) { return f(x, 0.5); }, -3, 3)
      .not_differentiable();
}
const OpSpec& kEq = compare_spec("eq", eq);
const OpSpec& kLt = compare_spec("lt", lt);
const OpSpec& kLe = compare_spec("le", le);
const OpSpec& kEqScalar = scalar_spec("eq_scalar", eq);
const OpSpec& kLtScalar = scalar_spec("lt_scalar", lt);
const OpSpec& kGtScalar = scalar_spec("gt_scalar", gt);

Tensor compare(const OpSpec& spec, Order order, const Tensor& a, const Tensor& b) {
  OpScope scope(spec);
  DType t = pointwise::arithmetic_dtype(promote(a.dtype(), b.dtype()));
  Tensor x = a.detach().to(t), y = b.detach().to(t);
  Tensor out = pointwise::empty_output(broadcast(x.shape(), y.shape()), boolean, {&x, &y});
  pointwise::visit_arithmetic(t, [&](auto tag) {
    using T = typename decltype(tag)::type;
    pointwise::run<bool, T, T>(Compare{order}, {&out, &x, &y});
  });
  return record(spec, out, {a, b});
}

Tensor compare(const OpSpec& spec, Order order, const Tensor& a, double b) {
  OpScope scope(spec);
  Tensor x = a.detach().to(pointwise::arithmetic_dtype(a.dtype()));
  Tensor out = pointwise::empty_output(x.shape(), boolean, {&x});
  pointwise::visit_arithmetic(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    pointwise::run<bool, T>(CompareScalar{order, b}, {&out, &x});
  });
  return record(spec, out, {a}, {{"value", b}});
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare(kEq, Order::eq, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare(kLt, Order::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare(kLe, Order::le, a, b); }
Tensor eq(const Tensor& a, double b) { return compare(kEqScalar, Order::eq, a, b); }
Tensor lt(const Tensor& a, double b) { return compare(kLtScalar, Order::lt, a, b); }
Tensor gt(const Tensor& a, double b) { return compare(kGtScalar, Order::gt, a, b); }

}  // namespace xylem
