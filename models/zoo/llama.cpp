// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/llama.h"

#include <algorithm>

#include "models/nn/init.h"
#include "models/zoo/residual.h"

namespace xylem::zoo {
namespace {

Residual run_layer(const Llama::Layer& layer, Residual r) {
  Tensor normed = add_norm(r, layer.input_layernorm);
  r.delta = layer.self_attn(normed);
  normed = add_norm(r, layer.post_attention_layernorm);
  r.delta = layer.mlp(normed);
  return r;
}

}  // namespace

void LlamaConfig::list(OptionTable& table) {
  table("vocab", vocab, "number of tokens");
  table("context", context, "longest sequence");
  table("layers", layers, "transformer blocks");
  table("heads", heads, "query heads");
  table("kv_heads", kv_heads, "key and value heads; a divisor of heads");
  table("width", width, "size of the residual stream; a multiple of heads");
  table("hidden", hidden, "size of the feed-forward layer");
  table("rope_base", rope_base, "base of the rotary frequencies");
  table("eps", eps, "added to the mean square in the norms");
  table("tied", tied, "the output layer shares the embedding's weight");
  table("recompute", recompute, "keep only layer inputs for backward and compute the rest again");
}

Llama::Attention::Attention(const Config& c)
    : q_proj(c.width, c.width, false),
      k_proj(c.width, c.width / c.heads * c.kv_heads, false),
      v_proj(c.width, c.width / c.heads * c.kv_heads, false),
      o_proj(c.width, c.width, false),
      head_size(c.width / c.heads),
      rope_base(c.rope_base) {}

Tensor Llama::Attention::operator()(const Tensor& x) const {
  int64_t batch = x.size(0), length = x.size(1);
  auto heads = [&](const Tensor& t) { return t.reshape({batch, length, -1, head_size}); };
  Tensor q = rotary(heads(q_proj(x)), rope_base), k = rotary(heads(k_proj(x)), rope_base);
  return o_proj(products(q, k, heads(v_proj(x)), {.causal = true}).flatten(2));
}

Llama::Mlp::Mlp(const Config& c)
    : gate_proj(c.width, c.hidden, false), up_proj(c.width, c.hidden, false), down_proj(c.hidden, c.width, false) {}

Llama::Layer::Layer(const Config& c)
    : self_attn(c), mlp(c), input_layernorm(c.width, c.eps), post_attention_layernorm(c.width, c.eps) {}

Llama::Model::Model(const Config& c) : embed_tokens(c.vocab, c.width), norm(c.width, c.eps) {
  for (int64_t i = 0; i < c.layers; ++i) layers.emplace_back(c);
}

namespace {
const LlamaConfig& checked(const LlamaConfig& c) {
  XY_CHECK(c.heads > 0 && c.width % c.heads == 0 && c.width / c.heads % 2 == 0, "llama: a width of ", c.width,
           " cannot be split into ", c.heads, " heads of even size");
  XY_CHECK(c.kv_heads > 0 && c.heads % c.kv_heads == 0, "llama: ", c.heads, " heads cannot share ", c.kv_heads,
           " kv_heads");
  return c;
}
}  // namespace

Llama::Llama(const Config& config) : config(checked(config)), model(init::skipping([&] { return Model(config); })) {
  if (!config.tied) lm_head.emplace(config.width, config.vocab, false);
  for (const NamedTensor& p : parameters())
    if (p.tensor.rank() == 2) init::normal(p.tensor, 0.02);
}

Tensor Llama::hidden(const Tensor& tokens) {
  XY_CHECK(tokens.size(1) <= config.context, "llama: a sequence of ", tokens.size(1), " tokens exceeds the context of ",
           config.context);
  Residual r = run_blocks(model.layers, {model.embed_tokens(tokens), {}}, config.recompute, run_layer);
  return add_norm(r, model.norm);
}

Tensor Llama::logits(const Tensor& hidden) const {
  return lm_head ? (*lm_head)(hidden) : linear(hidden, model.embed_tokens.weight);
}

Tensor Llama::output_weight() const {
  if (!lm_head) return model.embed_tokens.weight;
  return lm_head->input_quantizer || lm_head->weight_quantizer ? Tensor() : lm_head->weight;
}

// Files may lack the "model." prefix, hold rotary frequencies, and leave out or repeat a tied lm_head.
std::vector<NamedTensor> Llama::from_pretrained(std::vector<NamedTensor> tensors) const {
  std::erase_if(tensors, [&](const NamedTensor& t) {
    return t.name.ends_with("rotary_emb.inv_freq") || (config.tied && t.name == "lm_head.weight");
  });
  Tensor embedding;
  bool has_head = false;
  for (NamedTensor& t : tensors) {
    if (t.name == "lm_head.weight") {
      has_head = true;
      continue;
    }
    if (!t.name.starts_with("model.")) t.name.insert(0, "model.");
    if (t.name == "model.embed_tokens.weight") embedding = t.tensor;
  }
  if (!config.tied && !has_head && embedding.defined()) tensors.push_back({"lm_head.weight", embedding});
  return tensors;
}

}  // namespace xylem::zoo
