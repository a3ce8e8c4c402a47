// SPDX-License-Identifier: Apache-2.0
// Group normalisation (Wu and He, 2018).
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
  auto add = [&](const char* name, const Shape& shape, int groups) {
    list.push_back({name,
                    {sample_uniform(shape, -1, 2, 1), sample_uniform({shape[1]}, 0.5, 1.5, 2),
                     sample_uniform({shape[1]}, -1, 1, 3)},
                    [=](const Tensors& t) -> Tensors { return {group_norm(t[0], groups, t[1], t[2])}; }});
  };
  add("images", {2, 6, 4, 5}, 3);
  add("one group", {3, 4, 7}, 1);
  add("instance", {2, 3, 5, 3}, 3);
  add("rows", {5, 12}, 4);
  add("volume", {2, 4, 3, 2, 3}, 2);
  add("large planes", {1, 4, 30, 31}, 2);
  add("no rows", {0, 4, 3}, 2);
  list.push_back({"without gain and bias", {sample_uniform({2, 4, 9}, -1, 2)}, [](const Tensors& t) -> Tensors {
                    return {group_norm(t[0], 2, {}, {})};
                  }});
  return list;
}

const OpSpec& kGroupNorm = (new OpSpec("group_norm"))->onnx(lower_group_norm).samples(samples).double_backward();

Tensor composition(const Tensor& x, int groups, const Tensor& gain, const Tensor& bias, double eps) {
  const DType type = compute_type(x.dtype());
  int64_t per_group = x.size(1) / groups * (x.numel() / std::max<int64_t>(1, x.size(0) * x.size(1)));
  Tensor h = x.to(type).reshape({x.size(0), groups, per_group});
  h = h - mean(h, {2}, true);
  h = (h * rsqrt(mean(h * h, {2}, true) + eps)).reshape(x.shape());
  Shape column = Shape::filled(x.rank(), 1);
  column[1] = x.size(1);
  if (gain.defined()) h = h * gain.to(type).reshape(column);
  if (bias.defined()) h = h + bias.to(type).reshape(column);
  return h.to(x.dtype());
}

}  // namespace

Tensor group_norm(const Tensor& x, int groups, const Tensor& gain, const Tensor& bias, double eps) {
  OpScope scope(kGroupNorm);
  XY_CHECK(is_float(x.dtype()), "x must be floating point, not ", x.dtype());
  XY_CHECK(x.rank() >= 2, "x must be [N, C, ..], but its shape is ", x.shape());
  const int64_t channels = x.size(1);
  XY_CHECK(groups >= 1 && channels % groups == 0, channels, " channels (shape ", x.shape(), ") do not divide into ",
           groups, " groups");
  const Shape per_channel{channels};
  for (auto [name, t] : {std::pair("gain", gain), std::pair("bias", bias)}) {
    if (!t.defined()) continue;
    XY_CHECK(t.shape() == per_channel, name, " has shape ", t.shape(), " but x of shape ", x.shape(), " needs ",
             per_channel);
    XY_CHECK(t.device() == x.device(), name, " is on ", t.device(), " and x on ", x.device());
  }
  const DType type = compute_type(x.dtype());
  const bool none = x.numel() == 0;
  GroupNorm n{.x = packed(x),
              .gain = packed(gain, type),
              .bias = packed(bias, type),
              .n = x.size(0),
              .channels = channels,
              .inner = none ? 0 : x.numel() / (x.size(0) * channels),
              .groups = groups,
              .eps = eps};
  n.y = empty(x.shape(), x.dtype(), x.device());
  n.mean = empty({x.size(0), groups}, type, x.device());
  n.rstd = empty({x.size(0), groups}, type, x.device());
  if (!none) XY_ON_DEVICE(x, group_norm, n);

  auto backward = [x = Saved(x), gain = Saved(gain), bias = Saved(bias), mean = n.mean, rstd = n.rstd, inner = n.inner,
                   groups, eps](const Tensor& dy, const Wanted& want) -> Tensors {
    Tensor xs = x.get(), g = gain.get();
    if (want.create_graph()) {
      auto fn = [&](const Tensors& t) -> Tensors { return {composition(t[0], groups, t[1], t[2], eps)}; };
      return composed_backward(fn, {xs, g, bias.get()}, {want[0], want[1], want[2]}, {dy});
    }
    const DType type = compute_type(xs.dtype());
    const Shape per_channel{xs.size(1)};
    GradTarget dgain(want, 1, per_channel, type, xs.device()), dbias(want, 2, per_channel, type, xs.device());
    GroupNormGrad n{.dy = packed(dy),
                    .x = packed(xs),
                    .gain = packed(g, type),
                    .mean = mean,
                    .rstd = rstd,
                    .dx = empty(xs.shape(), xs.dtype(), xs.device()),
                    .dgain = dgain.out,
                    .dbias = dbias.out,
                    .accumulate_gain = dgain.accumulate,
                    .accumulate_bias = dbias.accumulate,
                    .n = xs.size(0),
                    .channels = xs.size(1),
                    .inner = inner,
                    .groups = groups};
    XY_ON_DEVICE(xs, group_norm_backward, n);
    return {n.dx, dgain.finish(want, 1, g.defined() ? g.dtype() : type),
            dbias.finish(want, 2, bias.defined() ? bias.get().dtype() : type)};
  };
  return record(kGroupNorm, n.y, {x, gain, bias}, {{"groups", int64_t(groups)}, {"eps", eps}}, backward);
}

}  // namespace xylem
