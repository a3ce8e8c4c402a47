// SPDX-License-Identifier: Apache-2.0
// silu(x) = x sigmoid(x), and the gated unit built on it (Shazeer, 2020).
#include "ops/elementwise/pointwise.h"

namespace xylem {
namespace {

struct Silu {
  static std::string onnx_composed(OnnxBuilder& onnx, const std::string& x) {
    return onnx.node("Mul", {x, onnx.node("Sigmoid", {x})});
  }
  template <class A>
  static XY_HD A fwd(A x) {
    return x * math::sigmoid(x);
  }
  template <class A>
  static XY_HD A bwd(A dy, A x) {
    A s = math::sigmoid(x);
    return dy * s * (A(1) + x * (A(1) - s));
  }
  static Tensor bwd_ops(const Tensor& dy, const Tensor& x) {
    Tensor s = sigmoid(x);
    return dy * s * (x * (1.0 - s) + 1.0);
  }
};

struct Swiglu {
  template <class A>
  XY_HD A operator()(A gate, A up) const {
    return Silu::fwd(gate) * up;
  }
};
struct SwigluBackward {
  template <class A>
  XY_HD pointwise::Pair<A> operator()(A dy, A gate, A up) const {
    A s = math::sigmoid(gate);
    return {dy * up * s * (A(1) + gate * (A(1) - s)), dy * gate * s};
  }
};

const OpSpec& kSwiglu =
    (new OpSpec("swiglu"))
        ->double_backward()
        .onnx([](OnnxBuilder& onnx, const ExportedOp& op) -> OnnxNames {
          return {onnx.node("Mul", {Silu::onnx_composed(onnx, op.inputs[0]), op.inputs[1]})};
        })
        .flops([](auto in, auto) { return 2.0 * double(in[0].numel()); })
        .samples([] {
          std::vector<Sample> samples;
          for (const Shape& shape : {Shape{3, 16}, Shape{5, 7}, Shape{1}, Shape{2, 0}})
            samples.push_back({shape.str(),
                               {sample_normal(shape, 2), sample_normal(shape, 1, 2)},
                               [](const Tensors& t) -> Tensors { return {swiglu(t[0], t[1])}; }});
          samples.push_back({"halves of one tensor", {sample_normal({4, 16})}, [](const Tensors& t) -> Tensors {
                               Tensors half = t[0].split(8, 1);
                               return {swiglu(half[0], half[1])};
                             }});
          return samples;
        });

}  // namespace

XY_POINTWISE(silu, Silu)

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  OpScope scope(kSwiglu);
  XY_CHECK(gate.shape() == up.shape(), "gate has shape ", gate.shape(), " but up has ", up.shape());
  XY_CHECK(gate.dtype() == up.dtype(), "gate is ", gate.dtype(), " but up is ", up.dtype());
  Tensor y = visit_float(gate.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    Tensor out = pointwise::empty_output(gate.shape(), gate.dtype(), {&gate, &up});
    pointwise::run<T, T, T>(Swiglu{}, {&out, &gate, &up});
    return out;
  });
  return record(kSwiglu, y, {gate, up}, {},
                [g = Saved(gate), u = Saved(up)](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor gate = g.get(), up = u.get();
                  if (want.create_graph()) return {Silu::bwd_ops(dy * up, gate), dy * silu(gate)};
                  return visit_float(gate.dtype(), [&](auto tag) -> Tensors {
                    using T = typename decltype(tag)::type;
                    Tensor dgate = pointwise::empty_output(gate.shape(), gate.dtype(), {&gate, &dy});
                    Tensor dup = empty_strided(gate.shape(), dgate.strides(), gate.dtype(), gate.device());
                    pointwise::run<T, T, T, T>(SwigluBackward{}, {&dgate, &dup, &dy, &gate, &up});
                    return {dgate, dup};
                  });
                });
}

}  // namespace xylem
