// SPDX-License-Identifier: Apache-2.0
// Convolution kernels. x [N, C, H, W], w [K, C/groups, R, S], y [N, K, P, Q], all of one type, with any strides; bias
// is added by the caller. The three are each other's derivatives, as a convolution is linear in each argument.
#pragma once
#include "ops/ops.h"

namespace xylem {

struct ConvShape {
  int64_t n, c, h, w;  // input
  int64_t k, r, s;     // output channels, filter
  int64_t p, q;        // output image
  int64_t groups;
  std::array<int, 2> stride, padding, dilation;
};

// Recorded operations: the gradients of conv2d, themselves differentiable.
// `channels_last` is the memory order of the result.
Tensor conv_input_gradient(const Tensor& dy, const Tensor& w, const Shape& x_shape, const ConvArgs& args,
                           bool channels_last);
Tensor conv_weight_gradient(const Tensor& x, const Tensor& dy, const Shape& w_shape, const ConvArgs& args);

// A new tensor in NCHW or channels-last order, of the type and on the device of `like`. The order of an image's
// gradient is that of the image: a gradient of 1x1 images does not show it.
Tensor empty_image(const Shape& shape, const Tensor& like, bool channels_last);
bool is_channels_last(const Tensor& t);

namespace cpu {
void conv_forward(const Tensor& x, const Tensor& w, const Tensor& y, const ConvShape& s);
void conv_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const ConvShape& s);
void conv_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, const ConvShape& s);
void add_channel_bias(const Tensor& y, const Tensor& bias);
}  // namespace cpu
namespace cuda {
void conv_forward(const Tensor& x, const Tensor& w, const Tensor& y, const ConvShape& s);
void conv_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const ConvShape& s);
void conv_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, const ConvShape& s);
void add_channel_bias(const Tensor& y, const Tensor& bias);
}  // namespace cuda

}  // namespace xylem
