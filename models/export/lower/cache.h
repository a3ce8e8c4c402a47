// SPDX-License-Identifier: Apache-2.0
// The key-value cache of a decoder: inputs and outputs of the graph, with the names of Hugging Face's Optimum.
#pragma once
#include <string>
#include <vector>

#include "core/op/lowering.h"

namespace xylem::exporting {

class GraphBuilder;

class DecoderInputs : public OnnxDecoder {
 public:
  // fixed: [batch, heads, max_length, size], written at position_ids; else past and present grow.
  DecoderInputs(bool fixed, int64_t max_length) : fixed_(fixed), max_length_(max_length) {}

  bool fixed() const { return fixed_; }
  int64_t max_length() const { return max_length_; }
  struct Layer {
    int64_t heads, size;  // of keys and values
  };
  const std::vector<Layer>& layers() const { return layers_; }  // complete once every attention has been lowered

  std::string position_ids() override { return "position_ids"; }
  std::string mask() override;
  std::string all_keys(const std::string& now, int64_t heads, int64_t size) override;
  std::string all_values(const std::string& now) override;

 private:
  friend class GraphBuilder;
  // Appends to the cache of the latest layer, or writes into it.
  std::string through_cache(const std::string& now, const std::string& which);

  const bool fixed_;
  const int64_t max_length_;
  std::vector<Layer> layers_ = {};
  GraphBuilder* onnx_ = nullptr;  // that asks
};

}  // namespace xylem::exporting
