// SPDX-License-Identifier: Apache-2.0
// Pooling and interpolation: checks, shapes and derivatives.
#include "ops/conv/pool.h"

#include "core/tensor/dispatch.h"
#include "ops/conv/conv_lowering.h"

namespace xylem {
namespace {

Sample sample(const char* name, const Shape& shape, std::function<Tensor(const Tensor&)> fn) {
  return {name, {sample_normal(shape)}, [fn](const Tensors& t) { return Tensors{fn(t[0])}; }};
}
Tensor channels_last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

std::vector<Sample> pool_samples(Tensor (*pool)(const Tensor&, const PoolArgs&)) {
  return {sample("2x2", {2, 3, 6, 8}, [=](const Tensor& x) { return pool(x, {}); }),
          sample("overlapping", {2, 2, 7, 9},
                 [=](const Tensor& x) {
                   return pool(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
                 }),
          sample("uneven", {1, 2, 8, 5},
                 [=](const Tensor& x) {
                   return pool(x, {.kernel = {2, 3}, .stride = {3, 1}, .padding = {0, 1}, .count_include_pad = false});
                 }),
          sample("channels last", {2, 4, 6, 5}, [=](const Tensor& x) { return pool(channels_last(x), {}); }),
          sample("one", {1, 1, 1, 1},
                 [=](const Tensor& x) {
                   return pool(x, {.kernel = {1, 1}, .stride = {1, 1}});
                 }),
          sample("empty", {0, 2, 4, 4}, [=](const Tensor& x) { return pool(x, {}); })};
}

const OpSpec& kMaxPool =
    (new OpSpec("max_pool2d"))->onnx(lower_max_pool).samples([] { return pool_samples(max_pool2d); });
const OpSpec& kAvgPool =
    (new OpSpec("avg_pool2d"))->onnx(lower_avg_pool).samples([] { return pool_samples(avg_pool2d); }).double_backward();
const OpSpec& kAdaptive = (new OpSpec("adaptive_avg_pool2d"))
                              ->onnx(lower_adaptive_avg_pool)
                              .samples([]() -> std::vector<Sample> {
                                return {sample("global", {2, 3, 5, 7},
                                               [](const Tensor& x) {
                                                 return adaptive_avg_pool2d(x, {1, 1});
                                               }),
                                        sample("uneven", {2, 2, 5, 7},
                                               [](const Tensor& x) {
                                                 return adaptive_avg_pool2d(x, {3, 2});
                                               }),
                                        sample("larger", {1, 2, 2, 3},
                                               [](const Tensor& x) {
                                                 return adaptive_avg_pool2d(x, {5, 4});
                                               }),
                                        sample("channels last", {2, 4, 6, 5},
                                               [](const Tensor& x) {
                                                 return adaptive_avg_pool2d(channels_last(x), {2, 2});
                                               }),
                                        sample("empty", {0, 2, 4, 4}, [](const Tensor& x) {
                                          return adaptive_avg_pool2d(x, {2, 2});
                                        })};
                              })
                              .double_backward();
const OpSpec& kInterpolate = (new OpSpec("interpolate"))
                                 ->onnx(lower_interpolate)
                                 .samples([]() -> std::vector<Sample> {
                                   auto nearest = Interpolation::nearest, bilinear = Interpolation::bilinear;
                                   return {sample("nearest x2", {2, 2, 3, 4},
                                                  [=](const Tensor& x) {
                                                    return interpolate(x, {6, 8}, nearest);
                                                  }),
                                           sample("nearest odd", {1, 2, 5, 4},
                                                  [=](const Tensor& x) {
                                                    return interpolate(x, {7, 3}, nearest);
                                                  }),
                                           sample("bilinear x2", {2, 2, 3, 4},
                                                  [=](const Tensor& x) {
                                                    return interpolate(x, {6, 8}, bilinear);
                                                  }),
                                           sample("bilinear down", {1, 2, 9, 7},
                                                  [=](const Tensor& x) {
                                                    return interpolate(x, {4, 3}, bilinear);
                                                  }),
                                           sample("corners", {1, 2, 4, 5},
                                                  [=](const Tensor& x) {
                                                    return interpolate(x, {7, 9}, bilinear, true);
                                                  }),
                                           sample("to one", {1, 2, 4, 5},
                                                  [=](const Tensor& x) {
                                                    return interpolate(x, {1, 1}, bilinear, true);
                                                  }),
                                           sample("channels last", {2, 4, 3, 4},
                                                  [=](const Tensor& x) {
                                                    return interpolate(channels_last(x), {5, 6}, bilinear);
                                                  }),
                                           sample("empty", {0, 2, 3, 3}, [=](const Tensor& x) {
                                             return interpolate(x, {6, 6}, nearest);
                                           })};
                                 })
                                 .double_backward();

void check_image(const Tensor& x) {
  XY_CHECK(x.defined() && x.rank() == 4, "x must be [N, C, H, W], not ", x.shape());
  XY_CHECK(is_float(x.dtype()), "x must be a floating point tensor, not ", x.dtype());
}

PoolShape pool_shape(const Tensor& x, const PoolArgs& a) {
  check_image(x);
  PoolAxis axes[2];
  for (int i = 0; i < 2; ++i) {
    XY_CHECK(a.kernel[i] > 0 && a.stride[i] > 0, "kernel and stride must be positive");
    XY_CHECK(a.padding[i] >= 0 && a.padding[i] <= a.kernel[i] / 2, "padding ", a.padding[i],
             " is more than half of kernel ", a.kernel[i]);
    int64_t padded = x.size(2 + i) + 2 * int64_t(a.padding[i]);
    XY_CHECK(padded >= a.kernel[i], "kernel ", a.kernel[i], " is larger than the padded image of x ", x.shape());
    axes[i] = {x.size(2 + i), (padded - a.kernel[i]) / a.stride[i] + 1, a.kernel[i], a.stride[i], a.padding[i]};
  }
  return {axes[0], axes[1], a.count_include_pad};
}

using Map = std::function<void(const Tensor& in, const Tensor& out)>;

// y = map(x) for a linear map, whose derivative is its adjoint. All images lie in memory as the first input does.
Tensor apply_linear(const OpSpec& spec, const Tensor& x, const Shape& y_shape, const Map& map, const Map& adjoint,
                    bool channels_last, const Attrs& attrs = {}) {
  Tensor y = empty_image(y_shape, x, channels_last);
  if (y.numel() > 0) map(x, y);
  return record(spec, y, {x}, attrs,
                [&spec, shape = x.shape(), map, adjoint, channels_last](const Tensor& dy, const Wanted&) -> Tensors {
                  return {apply_linear(spec, dy, shape, adjoint, map, channels_last)};
                });
}

Tensor average(const OpSpec& spec, const Tensor& x, const PoolShape& s, const Attrs& attrs) {
  auto map = [s](const Tensor& in, const Tensor& out) { XY_ON_DEVICE(in, avg_pool, in, out, s); };
  auto adjoint = [s](const Tensor& in, const Tensor& out) { XY_ON_DEVICE(in, avg_pool_backward, in, out, s); };
  return apply_linear(spec, x, {x.size(0), x.size(1), s.h.out, s.w.out}, map, adjoint, is_channels_last(x), attrs);
}

Attrs pool_attrs(const PoolArgs& a) {
  auto pair = [](const std::array<int, 2>& v) { return std::vector<int64_t>{v[0], v[1]}; };
  return {{"kernel_shape", pair(a.kernel)},
          {"strides", pair(a.stride)},
          {"pads", pair(a.padding)},
          {"count_include_pad", a.count_include_pad}};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const PoolArgs& args) {
  OpScope scope(kMaxPool);
  PoolShape s = pool_shape(x, args);
  XY_CHECK(s.h.in * s.w.in < int64_t(1) << 31, "the image of x ", x.shape(), " is too large");
  const bool last = is_channels_last(x);
  Tensor y = empty_image({x.size(0), x.size(1), s.h.out, s.w.out}, x, last);
  Tensor positions = empty_strided(y.shape(), y.strides(), i32, x.device());
  if (y.numel() > 0) XY_ON_DEVICE(x, max_pool, x, y, positions, s);
  return record(kMaxPool, y, {x}, pool_attrs(args),
                [shape = x.shape(), positions, s, last](const Tensor& dy, const Wanted&) -> Tensors {
                  Tensor dx = empty_image(shape, dy, last);
                  if (dx.numel() > 0) XY_ON_DEVICE(dy, max_pool_backward, dy, positions, dx, s);
                  return {dx};
                });
}

Tensor avg_pool2d(const Tensor& x, const PoolArgs& args) {
  OpScope scope(kAvgPool);
  return average(kAvgPool, x, pool_shape(x, args), pool_attrs(args));
}

Tensor adaptive_avg_pool2d(const Tensor& x, std::array<int64_t, 2> output) {
  OpScope scope(kAdaptive);
  check_image(x);
  XY_CHECK(output[0] > 0 && output[1] > 0, "the output size must be positive");
  XY_CHECK(x.size(2) > 0 && x.size(3) > 0, "x ", x.shape(), " has an empty image");
  PoolShape s = {{x.size(2), output[0], 1, 1, 0, true}, {x.size(3), output[1], 1, 1, 0, true}, false};
  return average(kAdaptive, x, s, {{"output_size", std::vector<int64_t>{output[0], output[1]}}});
}

Tensor interpolate(const Tensor& x, std::array<int64_t, 2> size, Interpolation mode, bool align_corners) {
  OpScope scope(kInterpolate);
  check_image(x);
  XY_CHECK(size[0] > 0 && size[1] > 0, "the output size must be positive");
  XY_CHECK(x.size(2) > 0 && x.size(3) > 0, "x ", x.shape(), " has an empty image");
  bool linear = mode == Interpolation::bilinear;
  XY_CHECK(linear || !align_corners, "align_corners needs Interpolation::bilinear");
  ResampleShape s = {{x.size(2), size[0], linear, align_corners}, {x.size(3), size[1], linear, align_corners}};
  auto map = [s](const Tensor& in, const Tensor& out) { XY_ON_DEVICE(in, resample, in, out, s); };
  auto adjoint = [s](const Tensor& in, const Tensor& out) { XY_ON_DEVICE(in, resample_backward, in, out, s); };
  return apply_linear(kInterpolate, x, {x.size(0), x.size(1), size[0], size[1]}, map, adjoint, is_channels_last(x),
                      {{"size", std::vector<int64_t>{size[0], size[1]}},
                       {"mode", std::string(linear ? "linear" : "nearest")},
                       {"align_corners", align_corners}});
}

}  // namespace xylem
