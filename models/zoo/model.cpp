// SPDX-License-Identifier: Apache-2.0
#include "models/zoo/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/random/rng.h"
#include "models/checkpoint/safetensors.h"
#include "models/nn/eval_scope.h"
#include "models/zoo/hub_config.h"
#include "ops/ops.h"

namespace xylem {
namespace {

int64_t sample_token(const std::vector<float>& logits, const GenerateOptions& options, uint64_t position) {
  if (options.temperature <= 0) return std::max_element(logits.begin(), logits.end()) - logits.begin();
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  if (options.top_k > 0 && options.top_k < int64_t(order.size())) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(),
                      [&](int64_t a, int64_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
    order.resize(options.top_k);
  }
  double largest = -INFINITY, total = 0;
  for (int64_t token : order) largest = std::max<double>(largest, logits[token]);
  std::vector<double> cumulative;
  for (int64_t token : order)
    cumulative.push_back(total += std::exp((double(logits[token]) - largest) / options.temperature));
  double u = uniform01(philox(options.seed, position, 0).v[0]) * total;
  size_t pick = std::upper_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin();
  return order[std::min(pick, order.size() - 1)];
}

}  // namespace

Tensor ZooModel::loss(const Tensor& input, const Tensor& target, const CrossEntropyArgs& args) {
  return cross_entropy(classes_last(forward(input)), target, args);
}

Tensor LanguageModel::example() const { return zeros({1, std::min<int64_t>(context(), 16)}, i64); }

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& target, const CrossEntropyArgs& args) {
  Tensor weight = output_weight();
  return weight.defined() ? linear_cross_entropy(hidden(tokens), weight, target, args)
                          : ZooModel::loss(tokens, target, args);
}

Tensor LanguageModel::next_logits(const Tensor& tokens) { return logits(hidden(tokens).select(1, tokens.size(1) - 1)); }

std::vector<int64_t> generate(LanguageModel& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options) {
  XY_CHECK(!prompt.empty(), "generate needs a prompt of at least one token");
  for (int64_t token : prompt)
    XY_CHECK(token >= 0 && token < model.vocab(), "the prompt holds token ", token, " but the model knows only ",
             model.vocab());
  NoGrad guard;
  EvalScope evaluation(model);

  Device device = model.parameters().front().tensor.device();
  std::vector<int64_t> text = prompt;
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    int64_t length = std::min<int64_t>(text.size(), model.context());
    Tensor tokens = from_vector(std::vector<int64_t>(text.end() - length, text.end()), {1, length}, device);
    text.push_back(sample_token(model.next_logits(tokens).to_vector<float>(), options, uint64_t(i)));
    if (options.on_token && !options.on_token(text.back())) break;
  }
  return {text.begin() + int64_t(prompt.size()), text.end()};
}

void load_pretrained(ZooModel& model, const std::string& path) {
  if (auto config = zoo::HubConfig::beside(path))
    zoo::check_options(*config, model.pretrained_options(*config), model.options());
  auto tensors = model.from_pretrained(load_checkpoint_tensors(path));
  try {
    load_state_dict(model, tensors);
  } catch (const Error& e) {
    XY_FAIL("cannot load '", path, "': ", e.message());
  }
}

void save_pretrained(const ZooModel& model, const std::string& path) {
  save_safetensors(path, model.to_pretrained(state_dict(model)), {{"format", "pt"}});
}

}  // namespace xylem
