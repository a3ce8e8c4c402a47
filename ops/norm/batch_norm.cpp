// SPDX-License-Identifier: Apache-2.0
// Batch normalisation (Ioffe and Szegedy, 2015) for NCHW, channels-last and [N, C] tensors.
#include "core/tensor/dispatch.h"
#include "ops/backend/composed.h"
#include "ops/backend/grad_target.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_lowering.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& shape, bool channels_last, bool training, bool affine = true) {
    Tensors in = {sample_uniform(shape, -1, 2, 1)};
    if (affine)
      in.push_back(sample_uniform({shape[1]}, 0.5, 1.5, 2)), in.push_back(sample_uniform({shape[1]}, -1, 1, 3));
    list.push_back({name, in, [=](const Tensors& t) -> Tensors {
                      Tensor x = t[0];
                      // Same values, channels innermost in memory.
                      if (channels_last) x = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
                      Tensor mean = full({shape[1]}, 0.25, f32, x.device()),
                             var = full({shape[1]}, 1.5, f32, x.device());
                      return {affine ? batch_norm(x, t[1], t[2], mean, var, training)
                                     : batch_norm(x, {}, {}, mean, var, training)};
                    }});
  };
  add("nchw", {3, 4, 5, 6}, false, true);
  add("channels last", {3, 5, 4, 4}, true, true);
  add("rows", {9, 7}, false, true);
  add("many rows", {300, 70}, false, true);
  add("one pixel", {6, 3, 1, 1}, false, true);
  add("large planes", {2, 2, 40, 33}, false, true);
  add("without gain and bias", {4, 3, 2, 2}, false, true, false);
  add("evaluation", {2, 4, 3, 3}, false, false);
  add("evaluation, channels last", {2, 8, 3, 3}, true, false);
  add("evaluation, no rows", {0, 4, 3, 3}, false, false);
  return list;
}

const OpSpec& kBatchNorm =
    (new OpSpec("batch_norm"))->role(OpRole::batch_norm).onnx(lower_batch_norm).samples(samples).double_backward();

bool is_channels_last(const Tensor& x) {
  if (x.rank() < 3 || x.is_contiguous()) return false;
  std::vector<int> order = {0};
  for (int i = 2; i < x.rank(); ++i) order.push_back(i);
  order.push_back(1);
  return x.detach().permute(order).is_contiguous();
}

// The values of t in the memory order of `like`.
Tensor in_order_of(const Tensor& like, const Tensor& t) {
  if (t.strides() == like.strides()) return t.detach();
  Tensor copy = empty_strided(like.shape(), like.strides(), t.dtype(), t.device());
  copy.copy_(t.detach());
  return copy;
}

Tensor composition(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean, const Tensor& rstd,
                   double eps, bool training) {
  const DType type = compute_type(x.dtype());
  Shape column = Shape::filled(x.rank(), 1);
  column[1] = x.size(1);
  std::vector<int> dims = {0};
  for (int i = 2; i < x.rank(); ++i) dims.push_back(i);
  Tensor centred = x.to(type) - (training ? xylem::mean(x.to(type), dims, true) : mean.reshape(column));
  Tensor y = centred * (training ? rsqrt(xylem::mean(centred * centred, dims, true) + eps) : rstd.reshape(column));
  if (gain.defined()) y = y * gain.to(type).reshape(column);
  if (bias.defined()) y = y + bias.to(type).reshape(column);
  return y.to(x.dtype());
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum, double eps) {
  OpScope scope(kBatchNorm);
  XY_CHECK(is_float(x.dtype()), "x must be floating point, not ", x.dtype());
  XY_CHECK(x.rank() >= 2, "x must be [N, C, ..], but its shape is ", x.shape());
  const Shape per_channel{x.size(1)};
  for (auto [name, t] : {std::pair("gain", gain), std::pair("bias", bias), std::pair("running_mean", running_mean),
                         std::pair("running_var", running_var)}) {
    if (!t.defined()) continue;
    XY_CHECK(t.shape() == per_channel, name, " has shape ", t.shape(), " but x of shape ", x.shape(), " needs ",
             per_channel);
    XY_CHECK(t.device() == x.device(), name, " is on ", t.device(), " and x on ", x.device());
  }
  XY_CHECK(running_mean.defined() == running_var.defined(), "give both running statistics or neither");
  XY_CHECK(training || running_mean.defined(), "evaluation needs running_mean and running_var");
  for (auto& t : {running_mean, running_var})
    XY_CHECK(!t.defined() || (t.dtype() == f32 && t.is_contiguous()), "running statistics must be contiguous f32");

  const DType type = compute_type(x.dtype());
  const bool last = is_channels_last(x);
  BatchNorm n{.x = last ? x.detach() : packed(x),
              .gain = packed(gain, type),
              .bias = packed(bias, type),
              .running_mean = running_mean,
              .running_var = running_var,
              .training = training,
              .momentum = momentum,
              .eps = eps};
  const int64_t samples = x.size(1) == 0 ? 0 : x.numel() / x.size(1);
  n.layout = last ? ChannelLayout{samples, x.size(1), 1}
                  : ChannelLayout{x.size(0), x.size(1), x.size(0) == 0 ? 1 : samples / x.size(0)};
  XY_CHECK(!training || samples > 1, "training needs more than one value per channel, but x has shape ", x.shape());
  n.y = empty_strided(n.x.shape(), n.x.strides(), x.dtype(), x.device());
  n.mean = empty(per_channel, type, x.device());
  n.rstd = empty(per_channel, type, x.device());
  XY_ON_DEVICE(x, batch_norm, n);
  if (training && running_mean.defined()) running_mean.bump_version(), running_var.bump_version();

  auto backward = [x = Saved(x), gain = Saved(gain), bias = Saved(bias), mean = n.mean, rstd = n.rstd, eps, training,
                   layout = n.layout](const Tensor& dy, const Wanted& want) -> Tensors {
    Tensor xs = x.get(), g = gain.get();
    if (want.create_graph()) {
      auto fn = [&](const Tensors& t) -> Tensors { return {composition(t[0], t[1], t[2], mean, rstd, eps, training)}; };
      return composed_backward(fn, {xs, g, bias.get()}, {want[0], want[1], want[2]}, {dy});
    }
    const DType type = compute_type(xs.dtype());
    const Shape per_channel{xs.size(1)};
    GradTarget dgain(want, 1, per_channel, type, xs.device()), dbias(want, 2, per_channel, type, xs.device());
    Tensor xk = is_channels_last(xs) ? xs.detach() : packed(xs);
    BatchNormGrad n{.dy = in_order_of(xk, dy),
                    .x = xk,
                    .gain = packed(g, type),
                    .mean = mean,
                    .rstd = rstd,
                    .dx = empty_strided(xk.shape(), xk.strides(), xs.dtype(), xs.device()),
                    .dgain = dgain.out,
                    .dbias = dbias.out,
                    .accumulate_gain = dgain.accumulate,
                    .accumulate_bias = dbias.accumulate,
                    .layout = layout,
                    .training = training};
    XY_ON_DEVICE(xs, batch_norm_backward, n);
    return {n.dx, dgain.finish(want, 1, g.defined() ? g.dtype() : type),
            dbias.finish(want, 2, bias.defined() ? bias.get().dtype() : type)};
  };
  return record(kBatchNorm, n.y, {x, gain, bias, running_mean, running_var},
                {{"training", training}, {"momentum", momentum}, {"eps", eps}}, backward);
}

}  // namespace xylem
