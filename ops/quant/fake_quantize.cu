// SPDX-License-Identifier: Apache-2.0
#include "ops/backend/grad_target.h"
#include "ops/elementwise/pointwise.h"
#include "ops/quant/quant.h"
#include "ops/quant/quant_lowering.h"

namespace xylem {
namespace {

XY_HD float nearest(float x) { return ::rintf(x); }  // halves to even
XY_HD double nearest(double x) { return ::rint(x); }

// The largest power of two that is not above |x|, for normal numbers.
XY_HD float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(__float_as_uint(x) & 0x7f800000u);
#else
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7f800000u);
#endif
}
XY_HD double power_of_two(double x) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(__double_as_longlong(x) & 0x7ff0000000000000ll);
#else
  return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & 0x7ff0000000000000ull);
#endif
}

struct Integers {
  double low, high;
  template <class A>
  XY_HD A nearest_value(A v) const {
    v = v < A(low) ? A(low) : v;  // written so that NaN passes
    return nearest(v > A(high) ? A(high) : v);
  }
  template <class A>
  XY_HD bool inside(A v) const {
    A r = nearest(v);
    return r >= A(low) && r <= A(high);
  }
};

// Four significant bits, spaced by 2^-9 below 2^-6. What rounds down to the largest value counts as inside.
struct E4m3 {
  template <class A>
  XY_HD A nearest_value(A v) const {
    v = v < A(-448) ? A(-448) : v;
    v = v > A(448) ? A(448) : v;
    A top = power_of_two(v), step = (top < A(0x1p-6) ? A(0x1p-6) : top) * A(0.125);
    return nearest(v / step) * step;
  }
  template <class A>
  XY_HD bool inside(A v) const {
    return v >= A(-464) && v <= A(464);
  }
};

template <class Grid>
struct Quantize {
  Grid grid;
  template <class A>
  XY_HD A operator()(A x, A scale) const {
    return grid.nearest_value(x / scale) * scale;
  }
};
template <class Grid>
struct PassInside {
  Grid grid;
  template <class A>
  XY_HD A operator()(A dy, A x, A scale) const {
    return grid.inside(x / scale) ? dy : A(0);
  }
};
template <class Grid>
struct StepGradient {
  Grid grid;
  template <class A>
  XY_HD A operator()(A dy, A x, A scale) const {
    A v = x / scale, q = grid.nearest_value(v);
    return dy * (grid.inside(v) ? q - v : q);
  }
};

template <class F>
void with_grid(const FakeQuantizeArgs& args, F&& f) {
  if (args.format == QuantFormat::fp8)
    f(E4m3{});
  else
    f(Integers{double(args.low), double(args.high)});
}

Shape scale_shape(const Shape& x, int axis, int64_t block) {
  if (block > 0) {
    XY_CHECK(x.rank() > 0 && x.back() % block == 0, "blocks of ", block, " do not divide the last dimension of ", x);
    Shape s = x;
    s[s.rank() - 1] /= block;
    return s;
  }
  return axis < 0 ? Shape{} : Shape{x[axis]};
}

// x and its scale as the kernels take them: of a common shape but for broadcasting.
Tensor in_blocks(const Tensor& x, const FakeQuantizeArgs& args) {
  if (args.block == 0) return x.detach();
  Shape s = scale_shape(x.shape(), -1, args.block);
  s.push_back(args.block);
  return x.detach().reshape(s);
}
Tensor spread(const Tensor& scale, const Shape& x, const FakeQuantizeArgs& args, DType dtype) {
  Tensor s = packed(scale, dtype);
  if (args.block > 0) return s.unsqueeze(-1);
  Shape to = Shape::filled(x.rank(), 1);
  if (args.axis >= 0) to[args.axis] = x[args.axis];
  return s.reshape(to);
}

template <class Functor>
Tensor on_grid(const Functor& f, DType out, const Tensor& dy, const Tensor& x, const Tensor& scale,
               const FakeQuantizeArgs& args) {
  Tensor in = in_blocks(x, args), g = in_blocks(dy, args), s = spread(scale, x.shape(), args, compute_type(x.dtype()));
  Tensor result = pointwise::empty_output(in.shape(), out, {&in, &g});
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    if (out == x.dtype())
      pointwise::run<T, T, T, A>(f, {&result, &g, &in, &s});
    else
      pointwise::run<A, T, T, A>(f, {&result, &g, &in, &s});
  });
  return args.block > 0 ? result.reshape(x.shape()) : result;
}

Tensor quantize(const Tensor& x, const Tensor& scale, const FakeQuantizeArgs& args) {
  Tensor in = in_blocks(x, args), s = spread(scale, x.shape(), args, compute_type(x.dtype()));
  Tensor y = pointwise::empty_output(in.shape(), in.dtype(), {&in});
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_grid(args, [&](auto grid) { pointwise::run<T, T, acc_t<T>>(Quantize<decltype(grid)>{grid}, {&y, &in, &s}); });
  });
  return args.block > 0 ? y.reshape(x.shape()) : y;
}

Tensor input_gradient(const Tensor& dy, const Tensor& x, const Tensor& scale, const FakeQuantizeArgs& args) {
  Tensor dx;
  with_grid(args, [&](auto grid) { dx = on_grid(PassInside<decltype(grid)>{grid}, x.dtype(), dy, x, scale, args); });
  return dx;
}

Tensor scale_gradient(const Tensor& dy, const Tensor& x, const Tensor& scale, const FakeQuantizeArgs& args) {
  NoGrad guard;
  DType type = compute_type(x.dtype());
  Tensor terms;
  with_grid(args, [&](auto grid) { terms = on_grid(StepGradient<decltype(grid)>{grid}, type, dy, x, scale, args); });
  Tensor total;
  if (args.block > 0) {
    total = sum(in_blocks(terms, args), {-1});
  } else {
    std::vector<int> others;
    for (int d = 0; d < x.rank(); ++d)
      if (d != args.axis) others.push_back(d);
    total = others.empty() && args.axis >= 0 ? terms : sum(terms, others);
  }
  double n = double(x.numel()) / double(std::max<int64_t>(scale.numel(), 1));
  double high = args.format == QuantFormat::fp8 ? 448 : double(args.high);
  return (total * (1 / std::sqrt(std::max(1.0, n * high)))).reshape(scale.shape()).to(scale.dtype());
}

void check(const Tensor& x, const Tensor& scale, const FakeQuantizeArgs& a) {
  XY_CHECK(is_float(x.dtype()) && is_float(scale.dtype()), "x and scale must be floating point, not ", x.dtype(),
           " and ", scale.dtype());
  XY_CHECK(a.format == QuantFormat::fp8 || (a.low <= 0 && 0 < a.high), "needs low <= 0 < high but got ", a.low, " and ",
           a.high);
  XY_CHECK(a.axis >= -1 && a.axis < x.rank(), "x of shape ", x.shape(), " has no dimension ", a.axis);
  Shape wanted = scale_shape(x.shape(), a.axis, a.block);
  XY_CHECK(scale.shape() == wanted || (wanted.rank() == 0 && scale.numel() == 1), "scale has shape ", scale.shape(),
           " but x of shape ", x.shape(), a.block > 0 ? " in blocks of " + std::to_string(a.block) : "",
           a.axis >= 0 ? " along dimension " + std::to_string(a.axis) : "", " needs ", wanted);
}

// Values whose quotient by the scale is exact in every type, so that a tie is a tie in all of them.
std::vector<Sample> samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& shape, double spread, const Shape& scales, FakeQuantizeArgs args,
                 double unit = 0.125) {
    auto grid = [&](const Shape& s, int64_t values, uint64_t seed, double unit, double shift) {
      return (sample_index(s, values, seed).to(f64) + shift) * unit;
    };
    Tensor x = grid(shape, int64_t(2 * spread) + 1, 1, unit, -spread), dy = grid(shape, 17, 2, 0.125, -8);
    Tensor scale = pow(full({}, 2.0, f64), grid(scales, 3, 3, 1, -2));
    list.push_back({name, {x, scale, dy}, [args](const Tensors& t) -> Tensors {
                      Tensor x = t[0].detach(), scale = t[1].detach();
                      EnableGrad on;
                      Tensor y = fake_quantize(x.set_requires_grad(), scale.set_requires_grad(), args);
                      Tensors g = grad({y}, {x, scale}, {t[2]});
                      return {y.detach(), g[0], g[1]};
                    }});
  };
  add("one scale", {5, 7}, 100, {}, {});
  add("one scale, one element", {4}, 100, {1}, {});
  add("narrow", {33}, 127, {}, {.low = -8, .high = 7});
  add("unsigned", {33}, 127, {}, {.low = 0, .high = 255});
  add("channels first", {6, 2, 3, 3}, 120, {6}, {.axis = 0, .low = -15, .high = 15});
  add("channels second", {2, 5, 4}, 120, {5}, {.axis = 1, .low = -7, .high = 7});
  add("channels last", {3, 9}, 120, {9}, {.axis = 1, .low = -100, .high = 100});
  add("vector", {9}, 120, {9}, {.axis = 0, .low = -100, .high = 100});
  add("blocks", {3, 64}, 64, {3, 2}, {.format = QuantFormat::int4, .low = -8, .high = 7, .block = 32});
  add("fp8", {6, 40}, 127, {}, {.format = QuantFormat::fp8});
  add("fp8 channels", {4, 21}, 127, {4}, {.format = QuantFormat::fp8, .axis = 0});
  add("fp8 saturated", {4, 21}, 127, {}, {.format = QuantFormat::fp8}, 4);
  add("large", {64, 300}, 100, {64}, {.axis = 0});
  add("scalar", {}, 100, {}, {});
  add("empty", {0, 3}, 100, {}, {});
  add("empty channels", {0, 3}, 100, {3}, {.axis = 1});
  return list;
}

double two_per_value(std::span<const Tensor>, std::span<const Tensor> out) { return 2 * double(out[0].numel()); }

// Registered as without a derivative: what it has in its place is checked by value, as outputs of the samples.
const OpSpec& kFakeQuantize = (new OpSpec("fake_quantize"))
                                  ->role(OpRole::quantizer)
                                  .onnx(lower_fake_quantize)
                                  .samples(samples)
                                  .not_differentiable()
                                  .flops(two_per_value);

}  // namespace

const char* name_of(QuantFormat f) { return f == QuantFormat::int8 ? "int8" : f == QuantFormat::int4 ? "int4" : "fp8"; }

QuantFormat parse_quant_format(const std::string& name) {
  for (QuantFormat f : {QuantFormat::int8, QuantFormat::int4, QuantFormat::fp8})
    if (name == name_of(f)) return f;
  XY_FAIL("there is no quantized format '", name, "'; choose int8, int4 or fp8");
}

Tensor fake_quantize(const Tensor& x, const Tensor& scale, const FakeQuantizeArgs& args) {
  OpScope scope(kFakeQuantize);
  check(x, scale, args);
  Attrs attrs = {{"axis", int64_t(args.block > 0 ? x.rank() - 1 : args.axis)},
                 {"low", args.low},
                 {"high", args.high},
                 {"format", std::string(name_of(args.format))},
                 {"block", args.block}};
  return record(kFakeQuantize, quantize(x, scale, args), {x, scale}, attrs,
                [x = Saved(x), scale = Saved(scale), args](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor in = x.get(), s = scale.get();
                  return {want[0] ? input_gradient(dy, in, s, args) : Tensor(),
                          want[1] ? scale_gradient(dy, in, s, args) : Tensor()};
                });
}

Tensor abs_max(const Tensor& x, int axis, int64_t block) {
  NoGrad guard;
  Tensor in = in_blocks(x, {.block = block});
  std::vector<int> over;
  for (int d = 0; d < in.rank(); ++d)
    if (block > 0 ? d == in.rank() - 1 : d != axis) over.push_back(d);
  if (over.empty() && in.rank() > 0) return abs(in).to(compute_type(x.dtype()));
  return maximum(amax(in, over), amin(in, over) * -1).to(compute_type(x.dtype()));
}

}  // namespace xylem
