// SPDX-License-Identifier: Apache-2.0
// Export to ONNX in one call:
//
//   export_onnx(model, {{"x", images, {{0, "batch"}}}}, "resnet.onnx");
//
// The forward pass is traced where operations are recorded, three times with different sizes of the dynamic
// dimensions: a size that was frozen into the graph is an error that names the operation and both values.
#pragma once
#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/export/onnx/profile.h"
#include "models/export/trace/inputs.h"
#include "models/nn/module.h"

namespace xylem {

struct ExportOptions {
  int opset = 0;  // 13 to 24; 0: the profile's
  Profile profile = Profile::exact;
  ExportPrecision precision = ExportPrecision::automatic;
  std::vector<std::string> outputs = {};        // names; default "output", "output_1", ...
  std::map<std::string, DimRange> ranges = {};  // of the dynamic symbols
  std::map<std::string, std::string> metadata = {};
  std::map<std::string, double> activation_amax = {};  // RangeObserver::ranges(), or by tensor of the graph
  bool external_data = false;                          // weights beside the model even when they are small
  int64_t external_over = int64_t(3) << 29;            // bytes of weights that are kept in the model itself
};

struct ExportReport {
  std::string file;
  int opset = 0, ir_version = 0;
  Profile profile = Profile::exact;
  ExportPrecision precision = ExportPrecision::fp32;
  int64_t nodes = 0, initializers = 0, weight_bytes = 0;
  std::vector<std::string> notes;  // what was folded, kept in fp32, left unquantized
};

// `model` gives names, parameters and the training flags; `forward` is called in evaluation mode without gradients.
// Throws Error naming the operation that has no ONNX form, a frozen dimension, or a layer still in training mode.
ExportReport export_onnx(Module& model, const ExportForward& forward, const std::vector<ExportInput>& inputs,
                         const std::string& file, const ExportOptions& options = {});

// A model that is called with one tensor, as those of the zoo.
template <class M>
requires std::derived_from<M, Module> && requires(M& m, const Tensor& x) {
  { m(x) } -> std::convertible_to<Tensor>;
}
ExportReport export_onnx(M& model, const std::vector<ExportInput>& inputs, const std::string& file,
                         const ExportOptions& options = {}) {
  XY_CHECK(inputs.size() == 1, "a model that is called with one tensor has one input, not ", inputs.size());
  return export_onnx(
      model, [&model](const Tensors& in) -> Tensors { return {model(in[0])}; }, inputs, file, options);
}

}  // namespace xylem
