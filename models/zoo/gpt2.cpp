// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/gpt2.h"

#include <algorithm>
#include <cmath>

#include "models/nn/init.h"
#include "models/zoo/hub_config.h"
#include "models/zoo/residual.h"

namespace xylem::zoo {
namespace {

Residual run_block(const Gpt2::Block& block, Residual r) {
  Tensor normed = add_norm(r, block.ln_1);
  r.delta = block.drop(block.attn(normed));
  normed = add_norm(r, block.ln_2);
  r.delta = block.drop(block.mlp(normed));
  return r;
}

bool is_conv1d_weight(const std::string& name) {
  for (const char* suffix : {"c_attn.weight", "c_proj.weight", "c_fc.weight"})
    if (name.ends_with(suffix)) return true;
  return false;
}

void transpose_conv1d(std::vector<NamedTensor>& tensors) {
  for (NamedTensor& t : tensors)
    if (is_conv1d_weight(t.name) && t.tensor.rank() == 2) t.tensor = t.tensor.detach().transpose(0, 1);
}

constexpr std::string_view kPrefix = "transformer.";

}  // namespace

void Gpt2Config::list(OptionTable& table) {
  table("vocab", vocab, "number of tokens");
  table("context", context, "longest sequence");
  table("layers", layers, "transformer blocks");
  table("heads", heads, "attention heads");
  table("width", width, "size of the residual stream; a multiple of heads");
  table("eps", eps, "added to the variance in the norms");
  table("dropout", dropout, "probability of dropping an activation");
  table("recompute", recompute, "keep only block inputs for backward and compute the rest again");
}

namespace {

struct Size {
  const char *option, *key;
  int64_t standard;  // where config.json leaves it out
};
constexpr Size kSizes[] = {{"vocab", "vocab_size", 50257},
                           {"context", "n_positions", 1024},
                           {"layers", "n_layer", 12},
                           {"heads", "n_head", 12},
                           {"width", "n_embd", 768}};

}  // namespace

// Dropout is left to the user: it changes nothing in what the weights compute.
Options Gpt2Config::from_hub(const HubConfig& hub) {
  if (hub.text("model_type", "gpt2") != "gpt2") hub.refuse("model_type", "gpt2 here");
  std::string activation = hub.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    hub.refuse("activation_function", "gelu_new (GELU by tanh)");
  for (const char* key : {"scale_attn_weights", "tie_word_embeddings"}) hub.require(key, true);
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) hub.require(key, false);
  if (hub.has("quantization_config")) hub.refuse("quantization_config", "none");
  Options o{{"eps", hub.number("layer_norm_epsilon", 1e-5)}};
  for (const Size& s : kSizes) o[s.option] = hub.integer(s.key, s.standard);
  const int64_t inner = 4 * std::get<int64_t>(o["width"]);
  if (hub.integer("n_inner", inner) != inner) hub.refuse("n_inner", "4 * n_embd");
  return o;
}

Options Gpt2::options() const {
  Config copy = config;
  OptionTable table;
  copy.list(table);
  return table.values();
}

Options Gpt2::pretrained_options(const HubConfig& hub) const {
  Options o = Config::from_hub(hub);
  for (const Size& s : kSizes)
    if (!hub.has(s.key)) o.erase(s.option);
  return o;
}

Gpt2::Attention::Attention(const Config& config)
    : c_attn(config.width, 3 * config.width), c_proj(config.width, config.width), heads(config.heads) {
  XY_CHECK(heads > 0 && config.width % heads == 0, "gpt2: a width of ", config.width, " cannot be split into ", heads,
           " heads");
}

Gpt2::Block::Block(const Config& config)
    : ln_1(config.width, config.eps),
      attn(config),
      ln_2(config.width, config.eps),
      mlp(config.width),
      drop(config.dropout) {}

Gpt2::Transformer::Transformer(const Config& config)
    : wte(config.vocab, config.width),
      wpe(config.context, config.width),
      drop(config.dropout),
      ln_f(config.width, config.eps) {
  for (int64_t i = 0; i < config.layers; ++i) h.emplace_back(config);
}

// Normal weights of deviation 0.02, smaller where they feed the residual stream, and no biases.
Gpt2::Gpt2(const Config& config) : config(config), transformer(init::skipping([&] { return Transformer(config); })) {
  double into_stream = 0.02 / std::sqrt(2.0 * double(std::max<int64_t>(config.layers, 1)));
  for (const NamedTensor& p : parameters()) {
    if (p.name.ends_with(".bias"))
      init::constant(p.tensor, 0);
    else if (p.tensor.rank() == 2)
      init::normal(p.tensor, p.name.ends_with("c_proj.weight") ? into_stream : 0.02);
  }
}

Tensor Gpt2::hidden(const Tensor& tokens) {
  int64_t length = tokens.size(1);
  XY_CHECK(length <= config.context, "gpt2: a sequence of ", length, " tokens exceeds the context of ", config.context);
  const Transformer& t = transformer;
  Residual r =
      run_blocks(t.h, {t.drop(t.wte(tokens) + t.wpe.weight.narrow(0, 0, length)), {}}, config.recompute, run_block);
  return add_norm(r, t.ln_f);
}

std::vector<NamedTensor> Gpt2::to_pretrained(std::vector<NamedTensor> tensors) const {
  transpose_conv1d(tensors);
  return tensors;
}

// Files from the hub may lack the "transformer." prefix, hold the causal masks as buffers, and name the tied embedding
// lm_head.weight as well.
std::vector<NamedTensor> Gpt2::from_pretrained(std::vector<NamedTensor> tensors) const {
  std::erase_if(tensors, [](const NamedTensor& t) {
    return t.name.ends_with(".attn.bias") || t.name.ends_with(".attn.masked_bias");
  });
  auto is_embedding = [](const NamedTensor& t) { return t.name == "wte.weight" || t.name == "transformer.wte.weight"; };
  bool has_embedding = std::any_of(tensors.begin(), tensors.end(), is_embedding);
  std::erase_if(tensors, [&](const NamedTensor& t) { return has_embedding && t.name == "lm_head.weight"; });
  for (NamedTensor& t : tensors) {
    if (t.name == "lm_head.weight") t.name = "wte.weight";
    if (!t.name.starts_with(kPrefix)) t.name.insert(0, kPrefix);
  }
  transpose_conv1d(tensors);
  return tensors;
}

}  // namespace xylem::zoo
