// SPDX-License-Identifier: Apache-2.0
// Layer norm (Ba et al., 2016) and RMS norm (Zhang and Sennrich, 2019), alone and fused with the residual addition.
#include "core/tensor/dispatch.h"
#include "ops/backend/composed.h"
#include "ops/backend/grad_target.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_lowering.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<Sample> samples(bool center, bool residual) {
  std::vector<Sample> list;
  const std::pair<const char*, Shape> cases[] = {{"small", {3, 8}},       {"odd width", {2, 3, 37}},
                                                 {"many rows", {70, 16}}, {"no rows", {0, 5}},
                                                 {"wide", {3, 1500}},     {"very wide", {2, 8200}}};
  for (auto& [name, shape] : cases) {
    Tensors in = {sample_uniform(shape, -1, 1, 1)};
    if (residual) in.push_back(sample_uniform(shape, -1, 1, 2));
    in.push_back(sample_uniform({shape.back()}, 0.5, 1.5, 3));
    if (center) in.push_back(sample_uniform({shape.back()}, -1, 1, 4));
    list.push_back({name, in, [=](const Tensors& t) -> Tensors {
                      if (!residual) return {center ? layer_norm(t[0], t[1], t[2]) : rms_norm(t[0], t[1])};
                      auto [h, y] = center ? add_layer_norm(t[0], t[1], t[2], t[3]) : add_rms_norm(t[0], t[1], t[2]);
                      return {h, y};
                    }});
  }
  return list;
}

const OpSpec& kLayerNorm =
    (new OpSpec("layer_norm"))->onnx(lower_layer_norm).samples([] { return samples(true, false); }).double_backward();
const OpSpec& kRmsNorm =
    (new OpSpec("rms_norm"))->onnx(lower_rms_norm).samples([] { return samples(false, false); }).double_backward();
const OpSpec& kAddLayerNorm = (new OpSpec("add_layer_norm"))
                                  ->onnx(lower_add_layer_norm)
                                  .samples([] { return samples(true, true); })
                                  .double_backward();
const OpSpec& kAddRmsNorm = (new OpSpec("add_rms_norm"))
                                ->onnx(lower_add_rms_norm)
                                .samples([] { return samples(false, true); })
                                .double_backward();

Tensor composition(const Tensor& h, const Tensor& gain, const Tensor& bias, double eps, bool center) {
  DType type = compute_type(h.dtype());
  Tensor x = h.to(type);
  if (center) x = x - mean(x, {-1}, true);
  Tensor y = x * rsqrt(mean(x * x, {-1}, true) + eps);
  if (gain.defined()) y = y * gain.to(type);
  if (bias.defined()) y = y + bias.to(type);
  return y.to(h.dtype());
}

void check(const Tensor& x, const Tensor& residual, const Tensor& gain, const Tensor& bias) {
  XY_CHECK(is_float(x.dtype()), "x must be floating point, not ", x.dtype());
  XY_CHECK(x.rank() >= 1, "x needs at least one dimension");
  Shape width{x.size(-1)};
  for (auto [name, t] : {std::pair("gain", gain), std::pair("bias", bias)}) {
    if (!t.defined()) continue;
    XY_CHECK(t.shape() == width, name, " has shape ", t.shape(), " but x of shape ", x.shape(), " needs ", width);
    XY_CHECK(t.device() == x.device(), name, " is on ", t.device(), " and x on ", x.device());
  }
  if (!residual.defined()) return;
  XY_CHECK(residual.shape() == x.shape(), "x has shape ", x.shape(), " and residual ", residual.shape());
  XY_CHECK(residual.dtype() == x.dtype(), "x is ", x.dtype(), " and residual ", residual.dtype());
  XY_CHECK(residual.device() == x.device(), "x is on ", x.device(), " and residual on ", residual.device());
}

// The fused computation. Outputs are {y}, or {x + residual, y} with a residual; inputs {x, [residual], gain, [bias]}.
Tensors run(const OpSpec& spec, const Tensor& x, const Tensor& residual, const Tensor& gain, const Tensor& bias,
            double eps, bool center) {
  check(x, residual, gain, bias);
  const bool fused = residual.defined();
  const DType type = compute_type(x.dtype());
  const int64_t rows = x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
  RowNorm n{
      .x = packed(x), .residual = packed(residual), .gain = packed(gain, type), .bias = packed(bias, type), .eps = eps};
  n.y = empty(x.shape(), x.dtype(), x.device());
  n.rstd = empty({rows}, type, x.device());
  if (fused) n.sum = empty(x.shape(), x.dtype(), x.device());
  if (center) n.mean = empty({rows}, type, x.device());
  if (rows > 0) XY_ON_DEVICE(x, row_norm, n);

  Tensors inputs = {x}, outputs;
  if (fused) inputs.push_back(residual), outputs.push_back(n.sum);
  const int gain_at = int(inputs.size());
  inputs.push_back(gain);
  if (center) inputs.push_back(bias);
  outputs.push_back(n.y);
  Saved h = fused ? Saved::output(n.sum, 0) : Saved(x);
  auto backward = [h, gain = Saved(gain), bias = Saved(bias), mean = n.mean, rstd = n.rstd, eps, center, fused,
                   gain_at](std::span<const Tensor> grads, const Wanted& want) -> Tensors {
    const Tensor& dy = grads[fused ? 1 : 0];
    Tensors result(gain_at + 2);
    if (!dy.defined()) {  // only the sum was used
      result[0] = result[1] = grads[0];
      return result;
    }
    Tensor x = h.get(), g = gain.get();
    if (want.create_graph()) {
      auto fn = [&](const Tensors& t) -> Tensors { return {composition(t[0], t[1], t[2], eps, center)}; };
      Tensors found = composed_backward(
          fn, {x, g, bias.get()}, {want[0] || (fused && want[1]), want[gain_at], center && want[gain_at + 1]}, {dy});
      result[0] = found[0].defined() && fused && grads[0].defined() ? found[0] + grads[0] : found[0];
      if (fused) result[1] = result[0];
      result[gain_at] = found[1], result[gain_at + 1] = found[2];
      return result;
    }
    const DType type = compute_type(x.dtype());
    const Shape width{x.size(-1)};
    GradTarget dgain(want, gain_at, width, type, x.device());
    GradTarget dbias = center ? GradTarget(want, gain_at + 1, width, type, x.device()) : GradTarget();
    RowNormGrad n{.dy = packed(dy),
                  .x = packed(x),
                  .gain = packed(g, type),
                  .mean = mean,
                  .rstd = rstd,
                  .dx = empty(x.shape(), x.dtype(), x.device()),
                  .dgain = dgain.out,
                  .dbias = dbias.out,
                  .accumulate_gain = dgain.accumulate,
                  .accumulate_bias = dbias.accumulate};
    if (fused) n.dsum = packed(grads[0]);
    XY_ON_DEVICE(x, row_norm_backward, n);
    result[0] = n.dx;
    if (fused) result[1] = n.dx;
    result[gain_at] = dgain.finish(want, gain_at, g.defined() ? g.dtype() : type);
    if (center) result[gain_at + 1] = dbias.finish(want, gain_at + 1, bias.defined() ? bias.get().dtype() : type);
    return result;
  };
  return record(spec, outputs, inputs, {{"eps", eps}}, backward);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double eps) {
  OpScope scope(kLayerNorm);
  return run(kLayerNorm, x, {}, gain, bias, eps, true)[0];
}

Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps) {
  OpScope scope(kRmsNorm);
  return run(kRmsNorm, x, {}, gain, {}, eps, false)[0];
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gain,
                                         const Tensor& bias, double eps) {
  OpScope scope(kAddLayerNorm);
  XY_CHECK(residual.defined(), "residual is undefined; use layer_norm");
  Tensors out = run(kAddLayerNorm, x, residual, gain, bias, eps, true);
  return {out[0], out[1]};
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gain, double eps) {
  OpScope scope(kAddRmsNorm);
  XY_CHECK(residual.defined(), "residual is undefined; use rms_norm");
  Tensors out = run(kAddRmsNorm, x, residual, gain, {}, eps, false);
  return {out[0], out[1]};
}

}  // namespace xylem
