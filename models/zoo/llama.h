// SPDX-License-Identifier: Apache-2.0
// Llama (Touvron et al. 2023): rotary positions, RMS norm, grouped-query attention, SwiGLU. Hugging Face's names.
#pragma once
#include <optional>
#include <vector>

#include "models/nn/layers.h"
#include "models/zoo/model.h"

namespace xylem::zoo {

struct LlamaConfig {
  int64_t vocab = 32000, context = 2048, layers = 12, heads = 12, kv_heads = 4, width = 768, hidden = 2048;
  double rope_base = 10000, eps = 1e-5;
  bool tied = false;
  bool recompute = false;
  void list(OptionTable& table);
  static Options from_hub(const HubConfig& config);  // ZooModel::pretrained_options
};

struct Llama : LanguageModel {
  using Config = LlamaConfig;
  struct Attention : Module {
    Linear q_proj, k_proj, v_proj, o_proj;
    AttentionProducts products;
    int64_t head_size;
    double rope_base;
    explicit Attention(const Config& config);
    XY_MEMBERS(q_proj, k_proj, v_proj, products, o_proj)
    Tensor operator()(const Tensor& x) const;
  };
  struct Mlp : Module {
    Linear gate_proj, up_proj, down_proj;
    explicit Mlp(const Config& config);
    XY_MEMBERS(gate_proj, up_proj, down_proj)
    Tensor operator()(const Tensor& x) const { return down_proj(swiglu(gate_proj(x), up_proj(x))); }
  };
  struct Layer : Module {
    Attention self_attn;
    Mlp mlp;
    RmsNorm input_layernorm, post_attention_layernorm;
    explicit Layer(const Config& config);
    XY_MEMBERS(self_attn, mlp, input_layernorm, post_attention_layernorm)
  };
  struct Model : Module {
    Embedding embed_tokens;
    std::vector<Layer> layers;
    RmsNorm norm;
    explicit Model(const Config& config);
    XY_MEMBERS(embed_tokens, layers, norm)
  };

  Config config;
  Model model;
  std::optional<Linear> lm_head;  // absent when tied to embed_tokens
  explicit Llama(const Config& config);
  XY_MEMBERS(model, lm_head)

  int64_t vocab() const override { return config.vocab; }
  int64_t context() const override { return config.context; }
  Tensor hidden(const Tensor& tokens) override;
  Tensor logits(const Tensor& hidden) const override;
  Tensor output_weight() const override;
  std::vector<NamedTensor> from_pretrained(std::vector<NamedTensor> tensors) const override;
  Options options() const override;
  Options pretrained_options(const HubConfig& hub) const override;
};

}  // namespace xylem::zoo
