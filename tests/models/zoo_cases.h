// SPDX-License-Identifier: Apache-2.0
// Small models of every kind in the zoo, and how they are exported with dynamic dimensions.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "models/zoo/zoo.h"
#include "tests/models/export_helpers.h"

namespace xylem::export_tests {

struct Case {
  std::string name;
  zoo::Options options;
  std::vector<int64_t> shape;  // of the example; -1: dynamic
  int64_t vocab = 0;           // > 0: tokens
};

inline const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"mlp", {{"in", int64_t(12)}, {"hidden", int64_t(8)}}, {-1, 12}},
      {"resnet_small", {{"width", int64_t(4)}, {"stages", int64_t(2)}}, {-1, 1, 12, 12}},
      {"unet", {{"width", int64_t(4)}, {"depth", int64_t(2)}}, {-1, 3, -4, -4}},
      {"vit",
       {{"image", int64_t(8)},
        {"patch", int64_t(4)},
        {"layers", int64_t(2)},
        {"heads", int64_t(2)},
        {"width", int64_t(8)},
        {"classes", int64_t(5)}},
       {-1, 3, 8, 8}},
      {"gpt2",
       {{"vocab", int64_t(17)},
        {"context", int64_t(16)},
        {"layers", int64_t(2)},
        {"heads", int64_t(2)},
        {"width", int64_t(8)}},
       {-1, -1},
       17},
      {"llama",
       {{"vocab", int64_t(17)},
        {"context", int64_t(16)},
        {"layers", int64_t(2)},
        {"heads", int64_t(4)},
        {"kv_heads", int64_t(2)},
        {"width", int64_t(16)},
        {"hidden", int64_t(24)}},
       {-1, -1},
       17},
      {"mobilenet_small", {{"width", int64_t(8)}, {"blocks", int64_t(1)}}, {-1, 1, 12, 12}},
  };
  return all;
}

// The example with its dynamic dimensions set: the batch to `batch`, others to `length` times their multiple.
inline Tensor input_of(const Case& c, int64_t batch, int64_t length, uint64_t seed = 3) {
  Shape shape;
  for (size_t d = 0; d < c.shape.size(); ++d)
    shape.push_back(c.shape[d] > 0 ? c.shape[d] : d == 0 ? batch : -c.shape[d] * length);
  return c.vocab ? sample_index(shape, c.vocab, seed) : floats(shape, seed);
}

inline ExportInput traced_input(const Case& c) {
  ExportInput in{c.vocab ? "input_ids" : "x", input_of(c, 2, 4)};
  const char* names[] = {"batch", "seq", "height", "width"};
  for (size_t d = 0; d < c.shape.size(); ++d)
    if (c.shape[d] < 0) in.dynamic[int(d)] = names[d];
  return in;
}

// Statistics and gains other than those of a new model.
inline void disturb(Module& model) {
  uint64_t seed = 100;
  for (const NamedTensor& t : state_dict(model)) {
    const bool variance = t.name.ends_with("running_var");
    NoGrad guard;
    t.tensor.detach().add_(variance ? sample_uniform(t.tensor.shape(), -0.5, 2, ++seed).to(f32)
                                    : sample_normal(t.tensor.shape(), 0.2, ++seed).to(f32));
  }
}

inline ExportOptions options_at(int opset) {
  return {.opset = opset, .ranges = {{"height", {.multiple = 4}}, {"width", {.multiple = 4}}}};
}

}  // namespace xylem::export_tests
