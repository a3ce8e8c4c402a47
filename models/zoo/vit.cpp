// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/vit.h"

#include "models/nn/init.h"

namespace xylem::zoo {
namespace {

const VitConfig& checked(const VitConfig& c) {
  XY_CHECK(c.patch > 0 && c.image >= c.patch && c.image % c.patch == 0, "vit: images of ", c.image,
           " pixels cannot be cut into patches of ", c.patch);
  return c;
}

}  // namespace

void VitConfig::list(OptionTable& table) {
  table("image", image, "height and width of the images; a multiple of patch");
  table("patch", patch, "height and width of a patch");
  table("channels", channels, "channels of the images");
  table("classes", classes, "number of classes");
  table("layers", layers, "transformer blocks");
  table("heads", heads, "attention heads");
  table("width", width, "size of the residual stream; a multiple of heads");
  table("dropout", dropout, "probability of dropping an activation");
  table("recompute", recompute, "keep only block inputs for backward and compute the rest again");
}

Vit::PatchEmbed::PatchEmbed(const Config& c) : proj(c.channels, c.width, int(c.patch), {.stride = int(c.patch)}) {}

Vit::Block::Block(const Config& c)
    : norm1(c.width, 1e-6), attn(c.width, c.heads), norm2(c.width, 1e-6), mlp(c.width), drop(c.dropout) {}

Tensor Vit::Block::operator()(const Tensor& x) const {
  auto [sum, normed] = add_layer_norm(drop(attn(norm1(x))), x, norm2.weight, norm2.bias, norm2.eps);
  return sum + drop(mlp(normed));
}

Vit::Vit(const Config& config)
    : config(checked(config)),
      cls_token(parameter(zeros({1, 1, config.width}, f32, init::device()))),
      pos_embed(parameter(zeros({1, 1 + (config.image / config.patch) * (config.image / config.patch), config.width},
                                f32, init::device()))),
      patch_embed(config),
      drop(config.dropout),
      norm(config.width, 1e-6),
      head(config.width, config.classes) {
  for (int64_t i = 0; i < config.layers; ++i) blocks.emplace_back(config);
  for (const NamedTensor& p : parameters()) {
    if (p.tensor.rank() == 2 || p.name == "pos_embed")
      init::normal(p.tensor, 0.02);
    else if (p.name == "cls_token")
      init::normal(p.tensor, 1e-6);
    else if (p.name.ends_with(".bias") && !p.name.starts_with("patch_embed"))
      init::constant(p.tensor, 0);
  }
}

Tensor Vit::forward(const Tensor& images) {
  XY_CHECK(images.rank() == 4 && images.size(2) == config.image && images.size(3) == config.image,
           "vit: needs images [N, ", config.channels, ", ", config.image, ", ", config.image, "] but got ",
           images.shape());
  Tensor patches = patch_embed(images.to(cls_token.dtype()));
  Tensor cls = cls_token.expand({images.size(0), 1, config.width});
  Tensor x = drop(cat({cls, patches}, 1) + pos_embed);
  for (const Block& block : blocks) {
    if (config.recompute && grad_enabled())
      x = recompute([&block](const Tensors& in) { return block(in[0]); }, {x});
    else
      x = block(x);
  }
  return head(norm(x.select(1, 0)));
}

}  // namespace xylem::zoo
