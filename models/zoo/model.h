// SPDX-License-Identifier: Apache-2.0
// What the models of the zoo have in common.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/util/options.h"
#include "data/dataset.h"
#include "models/nn/module.h"
#include "ops/ops.h"

namespace xylem {
namespace zoo {
class HubConfig;
}

namespace zoo {
using Options = OptionValues;
}

struct ZooModel : Module {
  virtual RecordSpec::Task task() const = 0;  // what data it trains on
  virtual int64_t classes() const = 0;        // that its logits tell apart
  virtual Tensor example() const = 0;         // an input of one sample, on the CPU; what is in it does not matter
  virtual Tensor forward(const Tensor& input) = 0;
  Tensor operator()(const Tensor& input) { return forward(input); }
  // The logits that forward() returns, as losses and metrics take them: classes in the last dimension.
  virtual Tensor classes_last(const Tensor& logits) const { return logits; }
  // Scalar: mean cross-entropy over the targets that are not args.ignore_index, 0 if there are none.
  virtual Tensor loss(const Tensor& input, const Tensor& target, const CrossEntropyArgs& args = {});

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
  RecordSpec::Task task() const override { return RecordSpec::Task::classification; }
};

// Tokens [B, S] (i64 or i32) -> logits [B, S, vocab].
struct LanguageModel : ZooModel {
  RecordSpec::Task task() const override { return RecordSpec::Task::language_modelling; }
  int64_t classes() const override { return vocab(); }
  Tensor example() const override;
  virtual int64_t vocab() const = 0;
  virtual int64_t context() const = 0;                    // the longest sequence
  virtual Tensor hidden(const Tensor& tokens) = 0;        // [B, S, width], normalised
  virtual Tensor logits(const Tensor& hidden) const = 0;  // [.., width] -> [.., vocab]
  // The weight [vocab, width] where logits() is a linear layer and nothing else, so that the loss needs no logits.
  virtual Tensor output_weight() const { return {}; }
  Tensor loss(const Tensor& tokens, const Tensor& target, const CrossEntropyArgs& args = {}) override;
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
