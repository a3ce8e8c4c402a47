// SPDX-License-Identifier: Apache-2.0
// ONNX Runtime, loaded at run time: from XY_ONNXRUNTIME, from what scripts/setup.sh has installed, or from the
// system's library path. Nothing of it is needed to build.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

class OrtSession {
 public:
  struct Options {
    bool optimize = true;             // false: graph optimization off, an exact oracle for quantized models
    bool x64_quant_precision = true;  // exact int8 kernels on CPUs without VNNI
    int threads = 1;
    std::string save_optimized = {};  // where to write the optimized graph
  };
  static bool available();  // a library was found
  static std::string version();
  static std::string why_unavailable();  // where it was looked for; "" when it is available

  // Throws Error with ONNX Runtime's own words when it refuses the model, or naming what was looked for when there is
  // no library.
  explicit OrtSession(const std::string& model_file, const Options& options);
  explicit OrtSession(const std::string& model_file) : OrtSession(model_file, Options()) {}
  ~OrtSession();
  OrtSession(OrtSession&&) noexcept;

  struct Port {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;        // -1: dynamic
    std::vector<std::string> symbols;  // "batch" where named, "" where fixed
  };
  const std::vector<Port>& inputs() const;
  const std::vector<Port>& outputs() const;
  std::string metadata(const std::string& key) const;  // of the model's metadata_props; "" when absent
  // Inputs in the order of inputs(), on the CPU; outputs in the order of outputs().
  Tensors run(const Tensors& inputs) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace xylem
