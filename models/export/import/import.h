// SPDX-License-Identifier: Apache-2.0
// From ONNX back into a trainable module, quantized models included:
//
//   OnnxModule model = import_onnx("resnet_int8.onnx");
//   Tensor logits = model(images);
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/nn/module.h"

namespace xylem {

struct ImportOptions {
  // Which constants become parameters, by their names in the file: asked for every one in floating point, or stored as
  // integers behind DequantizeLinear. `is_weight` is what the rule of docs/export.md says, which decides by itself
  // where there is no function.
  std::function<bool(const std::string& name, bool is_weight)> trained = {};
};

// Runs an ONNX graph with Xylem's operations. Weights are parameters under their names in the file, running statistics
// buffers; masks, scales and other constants stay what they are. Pairs of QuantizeLinear and DequantizeLinear become
// fake_quantize with frozen scales; weights stored as integers become floating point ones behind it, and keep their
// levels until training moves them. 16-bit graphs compute in f32.
class OnnxModule : public Module {
 public:
  OnnxModule(OnnxModule&&) noexcept;
  ~OnnxModule() override;

  std::vector<std::string> input_names() const;
  std::vector<std::string> output_names() const;
  std::string metadata(const std::string& key) const;  // "" when absent
  int opset() const;

  // In the order of input_names(); outputs in that of output_names().
  Tensors operator()(const Tensors& inputs) const;
  Tensor operator()(const Tensor& x) const;  // of a model with one input; its first output

  void list_members(std::vector<Member>& out) override;

 private:
  friend OnnxModule import_onnx(const std::string& file, const ImportOptions& options);
  struct Impl;
  explicit OnnxModule(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Throws Error listing every operator that import does not know, or naming what is wrong with the file.
OnnxModule import_onnx(const std::string& file, const ImportOptions& options = {});

}  // namespace xylem
