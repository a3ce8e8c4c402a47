// SPDX-License-Identifier: Apache-2.0
// Vision transformer (Dosovitskiy et al. 2021), with timm's names.
#pragma once
#include <vector>

#include "models/nn/layers.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

struct VitConfig {
  int64_t image = 224, patch = 16, channels = 3, classes = 1000, layers = 12, heads = 12, width = 768;
  double dropout = 0;
  bool recompute = false;
  void list(OptionTable& table);
};

struct Vit : Classifier {
  using Config = VitConfig;
  struct PatchEmbed : Module {
    Conv2d proj;
    explicit PatchEmbed(const Config& config);
    XY_MEMBERS(proj)
    Tensor operator()(const Tensor& x) const { return proj(x).flatten(2).transpose(1, 2); }
  };
  struct Mlp : Module {
    Linear fc1, fc2;
    explicit Mlp(int64_t width) : fc1(width, 4 * width), fc2(4 * width, width) {}
    XY_MEMBERS(fc1, fc2)
    Tensor operator()(const Tensor& x) const { return fc2(gelu(fc1(x))); }
  };
  struct Block : Module {
    LayerNorm norm1;
    SelfAttention attn;
    LayerNorm norm2;
    Mlp mlp;
    Dropout drop;
    explicit Block(const Config& config);
    XY_MEMBERS(norm1, attn, norm2, mlp, drop)
    Tensor operator()(const Tensor& x) const;
  };

  Config config;
  Tensor cls_token, pos_embed;
  PatchEmbed patch_embed;
  Dropout drop;
  std::vector<Block> blocks;
  LayerNorm norm;
  Linear head;
  explicit Vit(const Config& config);
  XY_MEMBERS(cls_token, pos_embed, patch_embed, drop, blocks, norm, head)

  int64_t classes() const override { return config.classes; }
  Tensor example() const override { return zeros({1, config.channels, config.image, config.image}); }
  Tensor forward(const Tensor& images) override;
};

}  // namespace xylem::zoo
