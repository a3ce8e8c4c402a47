// SPDX-License-Identifier: Apache-2.0
// add, sub, mul, div of two tensors. Gradients are made of the same operations, so they can be differentiated again.
#include "ops/elementwise/binary.h"

namespace xylem {
namespace {

struct Add {
  template <class A>
  XY_HD A operator()(A a, A b) const {
    return a + b;
  }
};
struct Sub {
  template <class A>
  XY_HD A operator()(A a, A b) const {
    return a - b;
  }
};
struct Mul {
  template <class A>
  XY_HD A operator()(A a, A b) const {
    return a * b;
  }
};
struct Div {
  template <class A>
  XY_HD A operator()(A a, A b) const {
    return a / b;
  }
};

OpSpec& arithmetic_spec(const char* name, const char* onnx_operator, pointwise::BinaryCall f, double low) {
  return (new OpSpec(name))
      ->double_backward()
      .onnx(pointwise::lower_binary(onnx_operator))
      .flops(pointwise::one_per_output)
      .samples([=] { return pointwise::binary_samples(f, low, 2); });
}
const OpSpec& kAdd = arithmetic_spec("add", "Add", add, -2).imports("Add", pointwise::import_binary(add));
const OpSpec& kSub = arithmetic_spec("sub", "Sub", sub, -2).imports("Sub", pointwise::import_binary(sub));
const OpSpec& kMul = arithmetic_spec("mul", "Mul", mul, -2).imports("Mul", pointwise::import_binary(mul));
// ONNX divides whole numbers as C does: models/export/import has that.
const OpSpec& kDiv = arithmetic_spec("div", "Div", div, 0.5);

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  OpScope scope(kAdd);
  DType t = promote(a.dtype(), b.dtype());
  Tensor x = a.to(t), y = b.to(t);
  return record(kAdd, pointwise::compute_binary(Add{}, x, y), {x, y}, {},
                [sx = x.shape(), sy = y.shape()](const Tensor& dy, const Wanted& want) -> Tensors {
                  return {want[0] ? sum_to(dy, sx) : Tensor(), want[1] ? sum_to(dy, sy) : Tensor()};
                });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  OpScope scope(kSub);
  DType t = promote(a.dtype(), b.dtype());
  Tensor x = a.to(t), y = b.to(t);
  return record(kSub, pointwise::compute_binary(Sub{}, x, y), {x, y}, {},
                [sx = x.shape(), sy = y.shape()](const Tensor& dy, const Wanted& want) -> Tensors {
                  return {want[0] ? sum_to(dy, sx) : Tensor(), want[1] ? -sum_to(dy, sy) : Tensor()};
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  OpScope scope(kMul);
  DType t = promote(a.dtype(), b.dtype());
  Tensor x = a.to(t), y = b.to(t);
  return record(
      kMul, pointwise::compute_binary(Mul{}, x, y), {x, y}, {},
      [x = Saved(x), y = Saved(y)](const Tensor& dy, const Wanted& want) -> Tensors {
        Tensor a = x.get(), b = y.get();
        return {want[0] ? sum_to(mul(dy, b), a.shape()) : Tensor(), want[1] ? sum_to(mul(dy, a), b.shape()) : Tensor()};
      });
}

Tensor div(const Tensor& a, const Tensor& b) {
  OpScope scope(kDiv);
  DType t = promote(a.dtype(), b.dtype());
  if (!is_float(t)) t = f32;  // true division
  Tensor x = a.to(t), y = b.to(t), q = pointwise::compute_binary(Div{}, x, y);
  return record(
      kDiv, q, {x, y}, {},
      [shape = x.shape(), y = Saved(y), q = Saved::output(q)](const Tensor& dy, const Wanted& want) -> Tensors {
        Tensor b = y.get(), g = div(dy, b);
        return {want[0] ? sum_to(g, shape) : Tensor(), want[1] ? -sum_to(mul(g, q.get()), b.shape()) : Tensor()};
      });
}

}  // namespace xylem
