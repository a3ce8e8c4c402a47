// SPDX-License-Identifier: Apache-2.0
#include "distributed/parallel/sync_batch_norm.h"

#include "distributed/record/recorder.h"
#include "ops/backend/grad_target.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& shape, bool affine) {
    Tensors in = {sample_normal(shape)};
    if (affine) in.push_back(sample_normal({shape[1]})), in.push_back(sample_normal({shape[1]}));
    list.push_back({name, in, [](const Tensors& t) -> Tensors {
                      return {sync_batch_norm(t[0], t.size() > 1 ? t[1] : Tensor(), t.size() > 1 ? t[2] : Tensor(), {},
                                              {}, Group())};
                    }});
  };
  add("images", {4, 3, 5, 3}, true);
  add("rows", {6, 4}, true);
  add("plain", {3, 1, 2, 2}, false);
  return list;
}

const OpSpec& kSyncBatchNorm = (new OpSpec("sync_batch_norm"))->samples(samples).not_exportable("training alone");

struct Layout {
  Shape column;           // [1, C, 1, ..]
  std::vector<int> dims;  // all but C
  explicit Layout(const Tensor& x) : column(Shape::filled(x.rank(), 1)), dims{0} {
    column[1] = x.size(1);
    for (int i = 2; i < x.rank(); ++i) dims.push_back(i);
  }
};

// Mean and variance of all ranks' values, [C] each, and their number, [1].
struct Moments {
  Tensor mean, variance, count;
};

Moments all_moments(const Tensor& x, const Layout& layout, const Group& group) {
  int64_t channels = x.size(1), n = x.numel() / channels, world = group.size();
  Tensor mean = xylem::mean(x, layout.dims, false), centred = x - mean.reshape(layout.column);
  Tensor m2 = sum(centred * centred, layout.dims, false), count = full({1}, double(n), x.dtype(), x.device());
  if (world == 1) return {mean, m2 / double(n), count};
  Tensor mine = cat({mean, m2, count}), all = empty({world, 2 * channels + 1}, x.dtype(), x.device());
  recorder::Tag tag("batch_norm");
  group.all_gather(all, mine).wait();
  Tensor means = all.narrow(1, 0, channels), m2s = all.narrow(1, channels, channels);
  Tensor counts = all.narrow(1, 2 * channels, 1), total = sum(counts, {0}, false);
  mean = sum(means * counts, {0}, false) / total;
  Tensor apart = means - mean;
  return {mean, (sum(m2s, {0}, false) + sum(apart * apart * counts, {0}, false)) / total, total};
}

void move_running(const Tensor& running, const Tensor& value, double momentum) {
  running.copy_(running * (1 - momentum) + value.to(f32) * momentum);
}

}  // namespace

Tensor sync_batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, const Group& group, double momentum, double eps) {
  OpScope scope(kSyncBatchNorm);
  XY_CHECK(is_float(x.dtype()), "x must be floating point, not ", x.dtype());
  XY_CHECK(x.rank() >= 2 && x.numel() > 0, "x must be [N, C, ..] with samples on every rank, but its shape is ",
           x.shape());
  for (auto [name, t] : {std::pair("gain", gain), std::pair("bias", bias), std::pair("running_mean", running_mean),
                         std::pair("running_var", running_var)})
    XY_CHECK(!t.defined() || t.shape() == Shape{x.size(1)}, name, " has shape ", t.shape(), " but x of shape ",
             x.shape(), " needs ", Shape{x.size(1)});
  XY_CHECK(running_mean.defined() == running_var.defined(), "give both running statistics or neither");
  XY_CHECK(x.numel() / x.size(1) * group.size() > 1, "training needs more than one value per channel, but x has shape ",
           x.shape());

  const DType type = compute_type(x.dtype());
  const Layout layout(x);
  Tensor y, mean, rstd, total;
  {
    NoGrad guard;
    Tensor wide = x.detach().to(type);
    Moments m = all_moments(wide, layout, group);
    mean = m.mean, rstd = rsqrt(m.variance + eps), total = m.count;
    y = (wide - mean.reshape(layout.column)) * rstd.reshape(layout.column);
    if (gain.defined()) y = y * gain.detach().to(type).reshape(layout.column);
    if (bias.defined()) y = y + bias.detach().to(type).reshape(layout.column);
    y = y.to(x.dtype());
    if (running_mean.defined()) {
      move_running(running_mean, mean, momentum);
      move_running(running_var, m.variance * total / (total - 1.0), momentum);
    }
  }
  auto backward = [x = Saved(x), gain = Saved(gain), bias_type = bias.defined() ? bias.dtype() : f32,
                   has_bias = bias.defined(), mean, rstd, total, layout,
                   group](const Tensor& dy, const Wanted& want) -> Tensors {
    NoGrad guard;
    Tensor xs = x.get().detach(), g = gain.get();
    const DType type = rstd.dtype();
    const int64_t channels = xs.size(1);
    Tensor normed = (xs.to(type) - mean.reshape(layout.column)) * rstd.reshape(layout.column), d = dy.to(type);
    Tensor dbias = sum(d, layout.dims, false), dgain = sum(d * normed, layout.dims, false);
    Tensor dx;
    if (want[0]) {
      // Of the losses of all ranks: y depends on x through the common mean and variance too.
      Tensor both = cat({dbias, dgain});
      recorder::Tag tag("batch_norm gradient");
      group.all_reduce(both).wait();
      Tensor shared = both / total;
      dx = (d - shared.narrow(0, 0, channels).reshape(layout.column) -
            normed * shared.narrow(0, channels, channels).reshape(layout.column)) *
           (g.defined() ? rstd * g.detach().to(type) : rstd).reshape(layout.column);
      dx = dx.to(xs.dtype());
    }
    return {dx, g.defined() && want[1] ? dgain.to(g.dtype()) : Tensor(),
            has_bias && want[2] ? dbias.to(bias_type) : Tensor()};
  };
  return record(kSyncBatchNorm, y, {x, gain, bias}, {{"training", true}, {"momentum", momentum}, {"eps", eps}},
                backward);
}

}  // namespace xylem
