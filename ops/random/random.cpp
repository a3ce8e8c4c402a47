// SPDX-License-Identifier: Apache-2.0
#include "ops/random/random.h"

#include "core/tensor/dispatch.h"
#include "ops/ops.h"

namespace xylem {
namespace {

const OpSpec& kUniform = (new OpSpec("uniform"))->not_differentiable().not_exportable("random numbers").samples([] {
  return std::vector<Sample>{{"f32", {}, [](const Tensors&) -> Tensors { return {rand({3, 7})}; }}};
});
const OpSpec& kNormal = (new OpSpec("normal"))->not_differentiable().not_exportable("random numbers").samples([] {
  return std::vector<Sample>{{"f32", {}, [](const Tensors&) -> Tensors { return {randn({3, 7})}; }}};
});
const OpSpec& kDropout =
    (new OpSpec("dropout"))
        ->not_exportable("the layer is still in training mode; call eval() or pass training = false")
        .double_backward()
        .flops([](auto in, auto) { return double(in[0].numel()); })
        .samples([] {
          return std::vector<Sample>{
              {"half", {sample_normal({5, 13})}, [](const Tensors& t) -> Tensors { return {dropout(t[0], 0.5)}; }},
              {"most", {sample_normal({1000})}, [](const Tensors& t) -> Tensors { return {dropout(t[0], 0.9)}; }},
              {"empty", {sample_normal({0})}, [](const Tensors& t) -> Tensors { return {dropout(t[0], 0.5)}; }}};
        });

void fill_random(const OpSpec& spec, const Tensor& t, bool normal, double a, double b) {
  OpScope scope(spec);
  XY_CHECK(is_float(t.dtype()), "needs a floating point tensor but got ", t.dtype());
  Tensor target = t.is_contiguous() ? t : empty(t.shape(), t.dtype(), t.device());
  RngKey key = rng::draw(t.device());
  if (t.numel() > 0) {
    if (normal)
      XY_ON_DEVICE(t, normal, target, key, a, b);
    else
      XY_ON_DEVICE(t, uniform, target, key, a, b);
  }
  no_grad([&] { target.same_as(t) ? t.bump_version() : void(t.copy_(target)); });
}

// The same mask every time it is applied: the key, not the mask, is what backward keeps.
Tensor masked(const Tensor& x, RngKey key, double p, RngState drawn) {
  OpScope scope(kDropout);
  Tensor in = x.detach().contiguous(), y = empty(in.shape(), in.dtype(), in.device());
  if (y.numel() > 0) XY_ON_DEVICE(in, dropout, in, y, key, p);
  return record(kDropout, y, {x}, {{"p", p}}, [=](const Tensor& dy, const Wanted&) -> Tensors {
    XY_CHECK(
        rng::state().step == drawn.step && rng::state().seed == drawn.seed,
        "the random step moved on between forward and backward; call rng::next_step() only between training steps");
    return {masked(dy, key, p, drawn)};
  });
}

}  // namespace

void uniform_(const Tensor& t, double low, double high) { fill_random(kUniform, t, false, low, high); }
void normal_(const Tensor& t, double mean, double stddev) { fill_random(kNormal, t, true, mean, stddev); }

Tensor rand(const Shape& shape, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  uniform_(t, 0, 1);
  return record(kUniform, t, {}, {});
}
Tensor randn(const Shape& shape, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  normal_(t, 0, 1);
  return record(kNormal, t, {}, {});
}

Tensor dropout(const Tensor& x, double p, bool training) {
  OpScope scope(kDropout);
  XY_CHECK(p >= 0 && p < 1, "probability ", p, " is outside [0, 1)");
  if (p == 0 || !training) return x;
  XY_CHECK(is_float(x.dtype()), "needs a floating point tensor but got ", x.dtype());
  RngState drawn = rng::state();
  return masked(x, rng::draw(x.device()), p, drawn);
}

}  // namespace xylem
