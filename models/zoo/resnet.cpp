// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/resnet.h"

#include "models/nn/init.h"
#include "models/zoo/image.h"

namespace xylem::zoo {
namespace {

Conv2d conv1x1(int64_t in, int64_t out, int stride = 1) {
  return Conv2d(in, out, 1, {.stride = stride, .bias = false});
}
Conv2d conv3x3(int64_t in, int64_t out, int stride = 1) {
  return Conv2d(in, out, 3, {.stride = stride, .padding = 1, .bias = false});
}

Conv2d stem(const ResNetConfig& c) {
  return c.small_images ? conv3x3(c.channels, c.width)
                        : Conv2d(c.channels, c.width, 7, {.stride = 2, .padding = 3, .bias = false});
}

int64_t expansion(const ResNetConfig& c) { return c.bottleneck ? 4 : 1; }

std::vector<ResNet::Block> make_stage(const ResNetConfig& c, size_t stage) {
  std::vector<ResNet::Block> blocks;
  if (stage >= c.blocks.size()) return blocks;
  int64_t width = c.width << stage, in = stage == 0 ? c.width : (width / 2) * expansion(c);
  for (int64_t i = 0; i < c.blocks[stage]; ++i) {
    blocks.emplace_back(in, width, i == 0 && stage > 0 ? 2 : 1, c.bottleneck);
    in = width * expansion(c);
  }
  return blocks;
}

const ResNetConfig& checked(const ResNetConfig& c) {
  XY_CHECK(!c.blocks.empty() && c.blocks.size() <= 4, "resnet: one to four stages, not ", c.blocks.size());
  for (int64_t n : c.blocks) XY_CHECK(n > 0, "resnet: every stage needs at least one block");
  return c;
}

}  // namespace

ResNet::Block::Block(int64_t in, int64_t width, int stride, bool bottleneck)
    : conv1(bottleneck ? conv1x1(in, width) : conv3x3(in, width, stride)),
      bn1(width),
      conv2(bottleneck ? conv3x3(width, width, stride) : conv3x3(width, width)),
      bn2(width) {
  int64_t out = bottleneck ? 4 * width : width;
  if (bottleneck) {
    conv3.emplace(conv1x1(width, out));
    bn3.emplace(out);
  }
  if (stride != 1 || in != out) downsample.emplace(conv1x1(in, out, stride), BatchNorm2d(out));
}

Tensor ResNet::Block::operator()(const Tensor& x) const {
  Tensor y = bn2(conv2(relu(bn1(conv1(x)))));
  if (conv3) y = (*bn3)((*conv3)(relu(y)));
  return relu(add(y, downsample ? downsample->second(downsample->first(x)) : x));
}

ResNet::ResNet(const Config& config)
    : config(checked(config)),
      conv1(stem(config)),
      bn1(config.width),
      layer1(make_stage(config, 0)),
      layer2(make_stage(config, 1)),
      layer3(make_stage(config, 2)),
      layer4(make_stage(config, 3)),
      fc((config.width << (config.blocks.size() - 1)) * expansion(config), config.classes) {
  for (const NamedTensor& p : parameters())
    if (p.tensor.rank() == 4) init::kaiming_fan_out(p.tensor);
}

Tensor ResNet::forward(const Tensor& images) {
  Tensor x = relu(bn1(conv1(image_input(images, conv1.weight.dtype()))));
  if (!config.small_images) x = max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  for (auto* stage : {&layer1, &layer2, &layer3, &layer4})
    for (const Block& block : *stage) x = block(x);
  return fc(pool(x));
}

ResNetConfig resnet18_config() { return {}; }
ResNetConfig resnet50_config() { return {.blocks = {3, 4, 6, 3}, .bottleneck = true}; }

void ResNetConfig::list(OptionTable& table) {
  table("channels", channels, "channels of the images");
  table("classes", classes, "number of classes");
  table("width", width, "channels of the first stage; each later one doubles them");
  table("small_images", small_images, "begin with a 3x3 convolution and no pooling");
}

ResNetConfig ResNetSmallConfig::resnet() const {
  return {.blocks = std::vector<int64_t>(size_t(stages), blocks),
          .small_images = true,
          .channels = channels,
          .classes = classes,
          .width = width};
}

void ResNetSmallConfig::list(OptionTable& table) {
  table("channels", channels, "channels of the images");
  table("classes", classes, "number of classes");
  table("width", width, "channels of the first stage; each later one doubles them");
  table("blocks", blocks, "residual blocks per stage");
  table("stages", stages, "one to four; each but the first halves height and width");
}

}  // namespace xylem::zoo
