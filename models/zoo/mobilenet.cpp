// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/mobilenet.h"

#include "models/nn/init.h"
#include "models/zoo/image.h"

namespace xylem::zoo {
namespace {

const MobileNetConfig& checked(const MobileNetConfig& c) {
  XY_CHECK(c.blocks > 0 && c.stages > 0, "mobilenet_small: needs at least one block and one stage");
  return c;
}

}  // namespace

void MobileNetConfig::list(OptionTable& table) {
  table("channels", channels, "channels of the images");
  table("classes", classes, "number of classes");
  table("width", width, "channels of the first stage; each later one doubles them");
  table("blocks", blocks, "depthwise separable blocks per stage");
  table("stages", stages, "each but the first halves height and width");
}

MobileNet::Block::Block(int64_t in, int64_t out, int stride)
    : depthwise(in, in, 3, {.stride = stride, .padding = 1, .groups = int(in), .bias = false}),
      bn1(in),
      pointwise(in, out, 1, {.bias = false}),
      bn2(out) {}

MobileNet::MobileNet(const Config& config)
    : config(checked(config)),
      stem(config.channels, config.width, 3, {.padding = 1, .bias = false}),
      bn(config.width),
      head(config.width << (config.stages - 1), config.classes) {
  int64_t in = config.width;
  for (int64_t stage = 0; stage < config.stages; ++stage)
    for (int64_t i = 0; i < config.blocks; ++i) {
      blocks.emplace_back(in, config.width << stage, i == 0 && stage > 0 ? 2 : 1);
      in = config.width << stage;
    }
  for (const NamedTensor& p : parameters())
    if (p.tensor.rank() == 4) init::kaiming_fan_out(p.tensor);
}

Tensor MobileNet::forward(const Tensor& images) {
  Tensor x = relu(bn(stem(image_input(images, stem.weight.dtype()))));
  for (const Block& block : blocks) x = block(x);
  return head(pool(x));
}

}  // namespace xylem::zoo
