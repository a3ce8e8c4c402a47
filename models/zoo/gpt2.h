// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks, tied embedding. Hugging Face's parameter names.
#pragma once
#include <vector>

#include "models/nn/layers.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

struct Gpt2Config {
  int64_t vocab = 50257, context = 1024, layers = 12, heads = 12, width = 768;
  double eps = 1e-5;   // of the norms
  double dropout = 0;  // of the embeddings and of what each half of a block adds
  bool recompute = false;
  void list(OptionTable& table);
  static Options from_hub(const HubConfig& config);  // ZooModel::pretrained_options
};

struct Gpt2 : LanguageModel {
  using Config = Gpt2Config;
  struct Attention : Module {
    Linear c_attn, c_proj;
    AttentionProducts products;
    int64_t heads;
    explicit Attention(const Config& config);
    XY_MEMBERS(c_attn, products, c_proj)
    Tensor operator()(const Tensor& x) const { return c_proj(packed_attention(c_attn(x), heads, true, products)); }
  };
  struct Mlp : Module {
    Linear c_fc, c_proj;
    explicit Mlp(int64_t width) : c_fc(width, 4 * width), c_proj(4 * width, width) {}
    XY_MEMBERS(c_fc, c_proj)
    Tensor operator()(const Tensor& x) const { return c_proj(gelu_tanh(c_fc(x))); }
  };
  struct Block : Module {
    LayerNorm ln_1;
    Attention attn;
    LayerNorm ln_2;
    Mlp mlp;
    Dropout drop;
    explicit Block(const Config& config);
    XY_MEMBERS(ln_1, attn, ln_2, mlp, drop)
  };
  struct Transformer : Module {
    Embedding wte, wpe;
    Dropout drop;
    std::vector<Block> h;
    LayerNorm ln_f;
    explicit Transformer(const Config& config);
    XY_MEMBERS(wte, wpe, drop, h, ln_f)
  };

  Config config;
  Transformer transformer;
  explicit Gpt2(const Config& config);
  XY_MEMBERS(transformer)

  int64_t vocab() const override { return config.vocab; }
  int64_t context() const override { return config.context; }
  Tensor hidden(const Tensor& tokens) override;
  Tensor logits(const Tensor& hidden) const override { return linear(hidden, transformer.wte.weight); }
  Tensor output_weight() const override { return transformer.wte.weight; }
  // Hugging Face stores the weights of its Conv1D as [in, out].
  std::vector<NamedTensor> to_pretrained(std::vector<NamedTensor> tensors) const override;
  std::vector<NamedTensor> from_pretrained(std::vector<NamedTensor> tensors) const override;
  Options options() const override;
  Options pretrained_options(const HubConfig& hub) const override;
};

}  // namespace xylem::zoo
