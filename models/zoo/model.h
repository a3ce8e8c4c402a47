// SPDX-License-Identifier: Apache-2.0
// What the models of the zoo have in common.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "models/nn/module.h"
#include "models/zoo/options.h"

namespace xylem {
namespace zoo {
class HubConfig;
}

struct ZooModel : Module {
  virtual std::string kind() const = 0;  // "classifier", "segmentation" or "language_model"
  virtual Tensor forward(const Tensor& input) = 0;
  Tensor operator()(const Tensor& input) { return forward(input); }
  // Mean cross-entropy over the last dimension of the logits.
  virtual Tensor loss(const Tensor& input, const Tensor& target);

  // Tensors under the names of state_dict() <-> the names and layouts of the library that published the model. The
  // identity where these are the same; gradients may be passed too.
  virtual std::vector<NamedTensor> to_pretrained(std::vector<NamedTensor> tensors) const { return tensors; }
  virtual std::vector<NamedTensor> from_pretrained(std::vector<NamedTensor> tensors) const { return tensors; }

  virtual zoo::Options options() const { return {}; }  // that it was made with
  // The options that a model must be made with to compute what the publisher's does, from the publisher's config.json.
  // Throws naming what no option of this model can do.
  virtual zoo::Options pretrained_options(const zoo::HubConfig&) const { return {}; }
};

// Images [N, C, H, W] -> logits [N, classes].
struct Classifier : ZooModel {
  std::string kind() const override { return "classifier"; }
};

// Tokens [B, S] (i64 or i32) -> logits [B, S, vocab].
struct LanguageModel : ZooModel {
  std::string kind() const override { return "language_model"; }
  virtual int64_t vocab() const = 0;
  virtual int64_t context() const = 0;                    // the longest sequence
  virtual Tensor hidden(const Tensor& tokens) = 0;        // [B, S, width], normalised
  virtual Tensor logits(const Tensor& hidden) const = 0;  // [.., width] -> [.., vocab]
  Tensor forward(const Tensor& tokens) override { return logits(hidden(tokens)); }
  Tensor next_logits(const Tensor& tokens);  // of the token after the last: [B, vocab]
};

struct GenerateOptions {
  int64_t max_tokens = 256;
  double temperature = 1;  // 0: always the likeliest token
  int64_t top_k = 0;       // sample among the k likeliest; 0: among all
  uint64_t seed = 0;
  std::function<bool(int64_t token)> on_token = {};  // sees each new token; false ends the text
};
// Continues a prompt of at least one token and returns the new tokens. Runs in eval mode without recording.
std::vector<int64_t> generate(LanguageModel& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options = {});

// A model's weights in safetensors under the publisher's names (Hugging Face for gpt2 and llama, torchvision for
// resnet, timm for vit). Paths are those of load_checkpoint_tensors(). A config.json beside the weights of gpt2 or
// llama is read too: where it asks for another model than this one is, or for what Xylem does not have, that is an
// error.
void load_pretrained(ZooModel& model, const std::string& path);
void save_pretrained(const ZooModel& model, const std::string& path);

}  // namespace xylem
