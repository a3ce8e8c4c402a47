// SPDX-License-Identifier: Apache-2.0
// What a training step of a model asks of a GPU, counted from the model itself: it is run once on the CPU, on one image
// or a few tokens, and every operation is looked at. Nothing of it depends on the machine; step_plan.h does.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/util/options.h"
#include "models/zoo/model.h"

namespace xylem {

// A matrix product or convolution.
struct ProductWork {
  double flops = 0;     // of the forward pass
  double elements = 0;  // that the forward pass reads and writes, without the weight
  int64_t width = 0;    // the smaller side of the weight; 0: a convolution
  int times = 3;        // as much work as the forward pass: itself and two gradients; 4 where it is computed again
  auto operator<=>(const ProductWork&) const = default;
};

// Of one token, or of one image.
struct Work {
  std::map<ProductWork, double> products = {};  // and how often each occurs
  double attention = 0;                         // forward FLOPs for each token of the sequence
  double attention_again = 0;                   // those of them that recomputation repeats
  double moved = 0;                             // elements that all other operations read and write, both ways
  double kept = 0;                              // elements kept from the forward to the backward pass
  double logits = 0;                            // elements of logits that linear_cross_entropy makes in parts
  double largest = 0;                           // elements of the largest result, of an image
  double head = 0;                              // elements of the weight whose gradient it keeps meanwhile, once
  double kernels = 0;                           // launched for a pass forward and back
  Work plus(const Work& other, double times) const;
};

struct ModelWork {
  std::string name;
  bool language = false;  // of tokens, else of images
  int64_t parameters = 0;
  Work whole = {};
  int64_t head_size = 0, patches = 1;  // of attention; the length of its sequence in a model of images
  // Language models, which are laid out by blocks: all of them alike.
  Work block = {};
  double block_again = 0;  // elements that a block keeps while it is computed again; 0: no recomputation
  int64_t blocks = 1, block_parameters = 0, heads = 1, kv_heads = 1, context = 1;
  int64_t width() const { return heads * head_size; }
  double forward_flops(int64_t sequence) const;  // of one token or image
};

// A model of the zoo by its name and options; `image` is the height and width of a sample, 0: the model's own, else
// 224. Throws naming what the model cannot take.
ModelWork count_work(const std::string& name, const zoo::Options& options = {}, int64_t image = 0);

// Published sizes: gpt2-124m, -355m, -774m, -1.5b, llama-1b, -7b, -8b, -70b, and every name of the zoo with its
// defaults.
std::optional<ModelWork> known_work(const std::string& name, int64_t image = 0);
std::string known_sizes();  // their names, for messages

}  // namespace xylem
