// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/unet.h"

#include <algorithm>

#include "models/zoo/image.h"

namespace xylem::zoo {
namespace {

Sequential two_convs(int64_t in, int64_t out) {
  ConvOptions options{.padding = 1, .bias = false};
  return Sequential(Conv2d(in, out, 3, options), BatchNorm2d(out), relu, Conv2d(out, out, 3, options), BatchNorm2d(out),
                    relu);
}

Tensor halve(const Tensor& x) { return max_pool2d(x, {.kernel = {2, 2}, .stride = {2, 2}}); }
Tensor double_size(const Tensor& x) { return interpolate(x, {2 * x.size(2), 2 * x.size(3)}, Interpolation::bilinear); }

}  // namespace

void UnetConfig::list(OptionTable& table) {
  table("channels", channels, "channels of the images");
  table("classes", classes, "number of classes");
  table("width", width, "channels at full size; doubled at each halving of the image");
  table("depth", depth, "number of halvings");
  table("bilinear", bilinear, "grow by interpolation instead of transposed convolution");
}

Unet::Up::Up(int64_t in, int64_t out, bool bilinear) : conv(two_convs(2 * out, out)) {
  if (bilinear) {
    grow.add(double_size);
    grow.add(Conv2d(in, out, 1));
  } else {
    grow.add(ConvTranspose2d(in, out, 2, {.stride = 2}));
  }
}

Unet::Unet(const Config& config)
    : config(config), stem(two_convs(config.channels, config.width)), head(config.width, config.classes, 1) {
  int64_t width = config.width;
  for (int64_t i = 0; i < config.depth; ++i, width *= 2) down.push_back(two_convs(width, 2 * width));
  for (int64_t i = 0; i < config.depth; ++i, width /= 2) up.emplace_back(width, width / 2, config.bilinear);
}

Tensor Unet::example() const {
  const int64_t size = std::max<int64_t>(32, int64_t(1) << config.depth);
  return zeros({1, config.channels, size, size});
}

Tensor Unet::forward(const Tensor& images) {
  int64_t multiple = int64_t(1) << config.depth;
  XY_CHECK(images.rank() == 4 && images.size(2) % multiple == 0 && images.size(3) % multiple == 0,
           "unet: needs images [N, ", config.channels, ", H, W] with H and W multiples of ", multiple, " but got ",
           images.shape());
  Tensors skips{stem(image_input(images, head.weight.dtype()))};
  for (const Sequential& stage : down) skips.push_back(stage(halve(skips.back())));
  Tensor x = skips.back();
  skips.pop_back();
  for (const Up& stage : up) {
    x = stage.conv(cat({skips.back(), stage.grow(x)}, 1));
    skips.pop_back();
  }
  return head(x);
}

}  // namespace xylem::zoo
