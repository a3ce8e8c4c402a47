// SPDX-License-Identifier: Apache-2.0
// where() moves bits: one kernel per element size serves every type.
#include "core/tensor/visit_width.h"
#include "ops/elementwise/binary.h"

namespace xylem {
namespace {

// All bits where the condition holds, without a branch or select, which compilers would not vectorise across sizes.
template <class A>
XY_HD A mask(uint8_t condition) {
  return A(A(0) - A(condition != 0));
}

struct Choose {
  template <class A>
  XY_HD A operator()(uint8_t condition, A a, A b) const {
    return A(b ^ ((a ^ b) & mask<A>(condition)));
  }
};
struct Keep {
  bool when;
  template <class A>
  XY_HD A operator()(uint8_t condition, A a) const {
    return A(a & mask<A>(uint8_t(condition != 0) == uint8_t(when)));
  }
};

OnnxNames lower_where(OnnxBuilder& onnx, const ExportedOp& op) {
  const OnnxNames branches = promoted(onnx, op, 1);
  return {onnx.node("Where", {op.inputs[0], branches[0], branches[1]}, {}, op.output_types[0])};
}
const OpSpec& kWhere = (new OpSpec("where"))->double_backward().onnx(lower_where).samples([] {
  auto sample = [](const char* name, const Shape& condition, const Shape& a, const Shape& b) {
    return Sample{name,
                  {sample_index(condition, 2).to(boolean), sample_normal(a), sample_normal(b, 1, 2)},
                  [](const Tensors& t) -> Tensors { return {where(t[0], t[1], t[2])}; }};
  };
  return std::vector<Sample>{sample("same", {4, 8}, {4, 8}, {4, 8}), sample("mask of a row", {6}, {3, 6}, {}),
                             sample("all broadcast", {4, 1}, {3}, {2, 1, 1}), sample("one", {1}, {1}, {1}),
                             sample("empty", {0}, {0}, {1})};
});
const OpSpec& kKeep =
    (new OpSpec("where_backward"))->double_backward().not_exportable("it belongs to a backward pass").samples([] {
      return std::vector<Sample>{};
    });

// x where condition == when, else 0; the shape of x.
Tensor keep(const Tensor& condition, const Tensor& x, bool when) {
  OpScope scope(kKeep);
  Tensor y = pointwise::empty_output(x.shape(), x.dtype(), {&x});
  visit_width(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    pointwise::run<T, uint8_t, T>(Keep{when}, {&y, &condition, &x});
  });
  return record(kKeep, y, {x}, {},
                [condition, when](const Tensor& dy, const Wanted&) -> Tensors { return {keep(condition, dy, when)}; });
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  OpScope scope(kWhere);
  XY_CHECK(condition.dtype() == boolean, "the condition is ", condition.dtype(), ", not bool");
  DType t = promote(a.dtype(), b.dtype());
  Tensor x = a.to(t), y = b.to(t);
  Tensor out = pointwise::empty_output(broadcast(condition.shape(), broadcast(x.shape(), y.shape())), t, {&x, &y});
  visit_width(t, [&](auto tag) {
    using T = typename decltype(tag)::type;
    pointwise::run<T, uint8_t, T, T>(Choose{}, {&out, &condition, &x, &y});
  });
  return record(
      kWhere, out, {condition, x, y}, {},
      [c = Saved(condition), sx = x.shape(), sy = y.shape()](const Tensor& dy, const Wanted& want) -> Tensors {
        Tensor condition = c.get();
        return {{},
                want[1] ? sum_to(keep(condition, dy, true), sx) : Tensor(),
                want[2] ? sum_to(keep(condition, dy, false), sy) : Tensor()};
      });
}

}  // namespace xylem
