// SPDX-License-Identifier: Apache-2.0
// conv2d, conv_transpose2d and the weight gradient. Each is linear in both arguments, and each one's derivatives are
// the other two, so they can be differentiated any number of times.
#include "ops/conv/conv.h"

#include "core/tensor/dispatch.h"
#include "ops/conv/conv_lowering.h"

namespace xylem {
namespace {

double conv_flops(std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  const Tensor& w = inputs[1];  // [K, C/groups, R, S]
  return 2.0 * double(outputs[0].numel()) * double(w.numel()) / double(std::max<int64_t>(w.size(0), 1));
}
double conv_transpose_flops(std::span<const Tensor> inputs, std::span<const Tensor>) {
  const Tensor& w = inputs[1];  // [C, K/groups, R, S]
  return 2.0 * double(inputs[0].numel()) * double(w.numel()) / double(std::max<int64_t>(w.size(0), 1));
}

struct Case {
  const char* name;
  Shape x, w;
  ConvArgs args;
  bool bias = true, channels_last = false;
  std::array<int, 2> output_padding{0, 0};
};
Tensor to_channels_last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

std::vector<Sample> make_samples(const std::vector<Case>& cases, bool transposed) {
  std::vector<Sample> samples;
  for (const Case& c : cases) {
    Tensors inputs = {sample_normal(c.x), sample_normal(c.w, 0.5, 2)};
    if (c.bias) inputs.push_back(sample_normal({transposed ? c.w[1] * c.args.groups : c.w[0]}, 1, 3));
    samples.push_back({c.name, inputs, [c, transposed](const Tensors& t) {
                         Tensor x = c.channels_last ? to_channels_last(t[0]) : t[0],
                                bias = t.size() > 2 ? t[2] : Tensor();
                         return Tensors{transposed ? conv_transpose2d(x, t[1], bias, c.args, c.output_padding)
                                                   : conv2d(x, t[1], bias, c.args)};
                       }});
  }
  return samples;
}

const OpSpec& kConv =
    (new OpSpec("conv2d"))
        ->role(OpRole::convolution)
        .onnx(lower_conv)
        .samples([] {
          return make_samples(
              {{"3x3", {2, 3, 6, 7}, {4, 3, 3, 3}, {.padding = {1, 1}}},
               {"1x1", {2, 4, 5, 3}, {3, 4, 1, 1}, {}, false},
               {"1x1 stride 2", {1, 4, 5, 6}, {8, 4, 1, 1}, {.stride = {2, 2}}, false},
               {"stride 2", {2, 2, 7, 8}, {3, 2, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
               {"uneven", {1, 2, 9, 6}, {3, 2, 3, 2}, {.stride = {3, 1}, .padding = {2, 0}, .dilation = {1, 2}}},
               {"dilated", {1, 2, 8, 8}, {2, 2, 3, 3}, {.padding = {2, 2}, .dilation = {2, 2}}, false},
               {"groups", {2, 4, 5, 5}, {6, 2, 3, 3}, {.padding = {1, 1}, .groups = 2}},
               {"depthwise", {2, 6, 5, 5}, {6, 1, 3, 3}, {.padding = {1, 1}, .groups = 6}, false},
               {"channels last", {2, 8, 6, 5}, {8, 8, 3, 3}, {.padding = {1, 1}}, true, true},
               {"one", {1, 1, 1, 1}, {1, 1, 1, 1}, {}},
               {"empty", {0, 3, 5, 5}, {2, 3, 3, 3}, {}}},
              false);
        })
        .flops(conv_flops)
        .tolerance(2e-5, 5e-2)
        .double_backward();
const OpSpec& kConvTranspose =
    (new OpSpec("conv_transpose2d"))
        ->role(OpRole::transposed_convolution)
        .onnx(lower_conv_transpose)
        .samples([] {
          return make_samples({{"stride 2", {2, 3, 4, 5}, {3, 4, 2, 2}, {.stride = {2, 2}}},
                               {"output padding",
                                {1, 2, 4, 3},
                                {2, 3, 3, 3},
                                {.stride = {2, 2}, .padding = {1, 1}},
                                true,
                                false,
                                {1, 1}},
                               {"groups", {2, 4, 3, 3}, {4, 2, 3, 3}, {.padding = {1, 1}, .groups = 2}},
                               {"dilated", {1, 2, 4, 4}, {2, 1, 3, 2}, {.dilation = {2, 1}}, false},
                               {"channels last", {2, 8, 4, 3}, {8, 8, 2, 2}, {.stride = {2, 2}}, true, true},
                               {"empty", {0, 3, 4, 4}, {3, 2, 2, 2}, {.stride = {2, 2}}}},
                              true);
        })
        .flops(conv_transpose_flops)
        .tolerance(2e-5, 5e-2)
        .double_backward();
const OpSpec& kWeightGradient =
    (new OpSpec("conv2d_weight_gradient"))
        ->samples([]() -> std::vector<Sample> {
          ConvArgs args = {.stride = {2, 1}, .padding = {1, 1}};
          return {
              {"stride 2", {sample_normal({2, 2, 6, 5}), sample_normal({2, 3, 3, 5}, 1, 2)}, [args](const Tensors& t) {
                 return Tensors{conv_weight_gradient(t[0], t[1], {3, 2, 3, 3}, args)};
               }}};
        })
        .flops([](std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
          const Tensor& dw = outputs[0];
          return 2.0 * double(inputs[1].numel()) * double(dw.numel()) / double(std::max<int64_t>(dw.size(0), 1));
        })
        .tolerance(2e-5, 5e-2)
        .double_backward()
        .not_exportable("a gradient is not part of an inference graph");

ConvShape conv_shape(const Shape& x, const Shape& w, const Shape& y, const ConvArgs& args) {
  return {x[0], x[1], x[2], x[3], w[0], w[2], w[3], y[2], y[3], args.groups, args.stride, args.padding, args.dilation};
}

void check_args(const Tensor& x, const Tensor& w, const ConvArgs& args) {
  XY_CHECK(x.defined() && w.defined(), "x and weight must be defined");
  XY_CHECK(x.rank() == 4 && w.rank() == 4, "x must be [N, C, H, W] and weight 4-D, not ", x.shape(), " and ",
           w.shape());
  XY_CHECK(is_float(x.dtype()) && x.dtype() == w.dtype(), "x is ", x.dtype(), " but weight is ", w.dtype());
  XY_CHECK(x.device() == w.device(), "x is on ", x.device(), " but weight is on ", w.device());
  for (int i = 0; i < 2; ++i)
    XY_CHECK(args.stride[i] > 0 && args.dilation[i] > 0 && args.padding[i] >= 0 && args.groups > 0,
             "stride, dilation and groups must be positive and padding not negative");
  XY_CHECK(w.size(2) > 0 && w.size(3) > 0, "weight ", w.shape(), " has an empty filter");
}
void check_bias(const Tensor& x, const Tensor& bias, int64_t channels) {
  if (!bias.defined()) return;
  XY_CHECK(bias.rank() == 1 && bias.size(0) == channels, "bias ", bias.shape(), " must be [", channels, "]");
  XY_CHECK(bias.dtype() == x.dtype() && bias.device() == x.device(), "bias must have x's type and device");
}

void add_bias(const Tensor& y, const Tensor& bias) {
  if (!bias.defined() || y.numel() == 0) return;
  Tensor packed = bias.detach().contiguous();
  XY_ON_DEVICE(y, add_channel_bias, y, packed);
}

Tensor run_forward(const Tensor& x, const Tensor& w, const Shape& y_shape, const ConvArgs& args) {
  NoGrad no_history;
  Tensor y = empty_image(y_shape, x, is_channels_last(x));
  if (y.numel() == 0) return y;
  if (w.numel() == 0) return y.zero_();
  XY_ON_DEVICE(x, conv_forward, x, w, y, conv_shape(x.shape(), w.shape(), y_shape, args));
  return y;
}
Tensor run_backward_data(const Tensor& dy, const Tensor& w, const Shape& x_shape, const ConvArgs& args,
                         bool channels_last) {
  NoGrad no_history;
  Tensor dx = empty_image(x_shape, dy, channels_last);
  if (dx.numel() == 0) return dx;
  if (dy.numel() == 0) return dx.zero_();
  XY_ON_DEVICE(dy, conv_backward_data, dy, w, dx, conv_shape(x_shape, w.shape(), dy.shape(), args));
  return dx;
}
void run_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, const ConvArgs& args) {
  NoGrad no_history;
  if (dw.numel() == 0) return;
  if (x.numel() == 0 || dy.numel() == 0) {
    dw.zero_();
    return;
  }
  XY_ON_DEVICE(x, conv_backward_weight, x, dy, dw, conv_shape(x.shape(), dw.shape(), dy.shape(), args));
}

// The weight's gradient, into the leaf's own buffer where there is one.
Tensor weight_gradient(const Tensor& x, const Tensor& dy, const Shape& shape, const ConvArgs& args,
                       const Wanted& want) {
  if (want.create_graph()) return conv_weight_gradient(x, dy, shape, args);
  std::optional<Sink> sink = want.sink(1);
  if (sink && !sink->accumulate && sink->grad.dtype() == x.dtype()) {
    run_backward_weight(x, dy, sink->grad, args);
  } else {
    Tensor dw = empty(shape, x.dtype(), x.device());
    run_backward_weight(x, dy, dw, args);
    if (!sink) return dw;
    if (sink->accumulate)
      sink->grad.add_(dw);
    else
      sink->grad.copy_(dw);
  }
  want.wrote(1);
  return {};
}

Attrs conv_attrs(const ConvArgs& a) {
  return {{"strides", std::vector<int64_t>{a.stride[0], a.stride[1]}},
          {"pads", std::vector<int64_t>{a.padding[0], a.padding[1]}},
          {"dilations", std::vector<int64_t>{a.dilation[0], a.dilation[1]}},
          {"group", int64_t(a.groups)}};
}

Tensor conv_transpose(const Tensor& x, const Tensor& w, const Tensor& bias, const Shape& y_shape, const ConvArgs& args,
                      bool channels_last) {
  Tensor y = run_backward_data(x, w, y_shape, args, channels_last);
  add_bias(y, bias);
  Attrs attrs = conv_attrs(args);
  std::vector<int64_t> output_padding;
  for (int i = 0; i < 2; ++i)
    output_padding.push_back(y_shape[2 + i] - ((x.size(2 + i) - 1) * args.stride[i] - 2 * int64_t(args.padding[i]) +
                                               int64_t(args.dilation[i]) * (w.size(2 + i) - 1) + 1));
  attrs.push_back({"output_padding", output_padding});
  return record(kConvTranspose, y, {x, w, bias}, attrs,
                [x = Saved(x), w = Saved(w), args](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor input = x.get(), weight = w.get();
                  return {want[0] ? conv2d(dy, weight, {}, args) : Tensor(),
                          want[1] ? weight_gradient(dy, input, weight.shape(), args, want) : Tensor(),
                          want[2] ? sum(dy, {0, 2, 3}) : Tensor()};
                });
}

}  // namespace

bool is_channels_last(const Tensor& t) {
  return t.rank() == 4 && t.size(1) > 1 && t.stride(1) == 1 && (t.size(3) == 1 || t.stride(3) == t.size(1)) &&
         (t.size(2) == 1 || t.stride(2) == t.size(1) * t.size(3)) && t.size(2) * t.size(3) > 1;
}

Tensor empty_image(const Shape& shape, const Tensor& like, bool channels_last) {
  if (!channels_last) return empty(shape, like.dtype(), like.device());
  Strides strides = {shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]};
  return empty_strided(shape, strides, like.dtype(), like.device());
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvArgs& args) {
  OpScope scope(kConv);
  check_args(x, weight, args);
  check_bias(x, bias, weight.size(0));
  XY_CHECK(x.size(1) == weight.size(1) * args.groups && weight.size(0) % args.groups == 0, "x ", x.shape(),
           " does not fit weight ", weight.shape(), " with groups ", args.groups);
  Shape y_shape = {x.size(0), weight.size(0), 0, 0};
  for (int i = 0; i < 2; ++i) {
    int64_t reach = int64_t(args.dilation[i]) * (weight.size(2 + i) - 1) + 1,
            padded = x.size(2 + i) + 2 * int64_t(args.padding[i]);
    XY_CHECK(padded >= reach, "the filter of weight ", weight.shape(), " is larger than the padded image of x ",
             x.shape());
    y_shape[2 + i] = (padded - reach) / args.stride[i] + 1;
  }
  Tensor y = run_forward(x, weight, y_shape, args);
  add_bias(y, bias);
  return record(
      kConv, y, {x, weight, bias}, conv_attrs(args),
      [x = Saved(x), w = Saved(weight), args](const Tensor& dy, const Wanted& want) -> Tensors {
        Tensor input = x.get(), weight = w.get();
        return {want[0] ? conv_input_gradient(dy, weight, input.shape(), args, is_channels_last(input)) : Tensor(),
                want[1] ? weight_gradient(input, dy, weight.shape(), args, want) : Tensor(),
                want[2] ? sum(dy, {0, 2, 3}) : Tensor()};
      });
}

Tensor conv_input_gradient(const Tensor& dy, const Tensor& w, const Shape& x_shape, const ConvArgs& args,
                           bool channels_last) {
  OpScope scope(kConvTranspose);
  return conv_transpose(dy, w, {}, x_shape, args, channels_last);
}

Tensor conv_weight_gradient(const Tensor& x, const Tensor& dy, const Shape& w_shape, const ConvArgs& args) {
  OpScope scope(kWeightGradient);
  Tensor dw = empty(w_shape, x.dtype(), x.device());
  run_backward_weight(x, dy, dw, args);
  return record(
      kWeightGradient, dw, {x, dy}, {},
      [x = Saved(x), dy = Saved(dy), args](const Tensor& g, const Wanted& want) -> Tensors {
        Tensor input = x.get(), gradient = dy.get();
        return {want[0] ? conv_input_gradient(gradient, g, input.shape(), args, is_channels_last(input)) : Tensor(),
                want[1] ? conv2d(input, g, {}, args) : Tensor()};
      });
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvArgs& args,
                        std::array<int, 2> output_padding) {
  OpScope scope(kConvTranspose);
  check_args(x, weight, args);
  check_bias(x, bias, weight.size(1) * args.groups);
  XY_CHECK(x.size(1) == weight.size(0) && weight.size(0) % args.groups == 0, "x ", x.shape(), " does not fit weight ",
           weight.shape(), " ([C, K/groups, R, S]) with groups ", args.groups);
  Shape y_shape = {x.size(0), weight.size(1) * args.groups, 0, 0};
  for (int i = 0; i < 2; ++i) {
    XY_CHECK(output_padding[i] >= 0 && output_padding[i] < args.stride[i], "output_padding must be less than stride");
    XY_CHECK(x.size(2 + i) > 0, "x ", x.shape(), " has an empty image");
    y_shape[2 + i] = (x.size(2 + i) - 1) * args.stride[i] - 2 * int64_t(args.padding[i]) +
                     int64_t(args.dilation[i]) * (weight.size(2 + i) - 1) + output_padding[i] + 1;
    XY_CHECK(y_shape[2 + i] > 0, "padding leaves nothing of the image of x ", x.shape());
  }
  return conv_transpose(x, weight, bias, y_shape, args, is_channels_last(x));
}

}  // namespace xylem
