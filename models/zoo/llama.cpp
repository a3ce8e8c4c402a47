// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/llama.h"

#include <algorithm>

#include "models/nn/init.h"
#include "models/zoo/hub_config.h"
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

namespace {

struct Size {
  const char *option, *key;
  int64_t standard;  // where config.json leaves it out
};
constexpr Size kSizes[] = {{"vocab", "vocab_size", 32000},      {"context", "max_position_embeddings", 2048},
                           {"layers", "num_hidden_layers", 32}, {"heads", "num_attention_heads", 32},
                           {"width", "hidden_size", 4096},      {"hidden", "intermediate_size", 11008}};

// transformers has rope_scaling and rope_theta, from its version 5 on both in rope_parameters.
void read_rope(const HubConfig& hub, Options& o) {
  auto parameters = hub.object("rope_parameters");
  o["rope_base"] = parameters && parameters->has("rope_theta") ? parameters->number("rope_theta", 0)
                                                               : hub.number("rope_theta", 10000);
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (auto scaling = hub.object(key)) {
      std::string type = scaling->text("rope_type", scaling->text("type", "default"));
      if (type != "default") hub.refuse(key, "none, and the type default");
    }
}

}  // namespace

Options LlamaConfig::from_hub(const HubConfig& hub) {
  if (hub.text("model_type", "llama") != "llama") hub.refuse("model_type", "llama here");
  std::string activation = hub.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") hub.refuse("hidden_act", "silu");
  for (const char* key : {"attention_bias", "mlp_bias"}) hub.require(key, false);
  for (const char* key : {"quantization_config", "sliding_window"})
    if (hub.has(key)) hub.refuse(key, "none");
  Options o{{"eps", hub.number("rms_norm_eps", 1e-6)}, {"tied", hub.flag("tie_word_embeddings", false)}};
  for (const Size& s : kSizes) o[s.option] = hub.integer(s.key, s.standard);
  const int64_t heads = std::get<int64_t>(o["heads"]), width = std::get<int64_t>(o["width"]);
  o["kv_heads"] = hub.integer("num_key_value_heads", heads);
  if (heads > 0 && hub.integer("head_dim", width / heads) != width / heads)
    hub.refuse("head_dim", "hidden_size / num_attention_heads");
  read_rope(hub, o);
  return o;
}

Options Llama::options() const {
  Config copy = config;
  OptionTable table;
  copy.list(table);
  return table.values();
}

Options Llama::pretrained_options(const HubConfig& hub) const {
  Options o = Config::from_hub(hub);
  for (const Size& s : kSizes)
    if (!hub.has(s.key)) o.erase(s.option);
  if (!hub.has("num_attention_heads") && !hub.has("num_key_value_heads")) o.erase("kv_heads");
  o.erase("context");                                                 // no weight depends on it
  if (std::get<bool>(o.at("tied")) && !config.tied) o.erase("tied");  // a head of its own begins as the embedding
  return o;
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
