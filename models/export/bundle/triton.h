// SPDX-License-Identifier: Apache-2.0
// A Triton model repository entry for an exported model.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/tensor/dtype.h"
#include "models/export/export.h"
#include "models/export/lint/lint.h"

namespace xylem::triton {

struct Port {
  std::string name;
  DType dtype = f32;
  std::vector<int64_t> shape;        // -1: dynamic
  std::vector<std::string> symbols;  // of the dynamic dimensions, "" elsewhere
};

struct Model {
  std::string name;
  std::vector<Port> inputs = {}, outputs = {};
  std::map<std::string, DimRange> ranges = {};  // by symbol
  bool quantized = false, half = false;
  bool tensorrt = false;  // written for TensorRT: run it through ONNX Runtime's TensorRT accelerator
};

// The dynamic symbol in front of every input and output; "" if there is none, and Triton cannot batch requests.
std::string batch_symbol(const Model& m);
// config.pbtxt, for the onnxruntime backend. Throws for a type that Triton cannot carry (bf16).
std::string config(const Model& m);
// What of a config.pbtxt does not fit the model; rule T1.
std::vector<LintFinding> check_config(const std::string& config, const Model& m);
enum class At { min, opt, max };
std::vector<int64_t> sizes(const Model& m, const Port& port, At at);
// "x:1x3x224x224,ids:1x16" at the smallest, middle or largest sizes.
std::string shapes(const Model& m, At at);

}  // namespace xylem::triton
