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
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/nn/module.h"

namespace xylem {

// Which runtime the graph is written for (docs/export.md has the differences and what each profile promises).
//   exact     fp32 carrier, Q/DQ as trained: the oracle
//   trt8      TensorRT 8.5/8.6: fp32 carrier, opset 17
//   trt10     TensorRT 10: strongly typed, int8 weights, opset 19
//   trt11     TensorRT 11: strongly typed only
//   ort-cpu   ONNX Runtime on CPUs: uint8 activations
enum class Profile { exact, trt8, trt10, trt11, ort_cpu };
Profile parse_profile(const std::string& name);
const char* name_of(Profile p);

// automatic: fp32, or mixed for the profiles that take their precision from the graph (trt10, trt11).
// fp16, bf16: everything but statistics, angles and masks. mixed: fp16 except where a weight or an observed activation
// (ExportOptions::activation_amax) does not fit. Inputs and outputs stay fp32.
enum class ExportPrecision { automatic, fp32, fp16, bf16, mixed };
ExportPrecision parse_export_precision(const std::string& name);
const char* name_of(ExportPrecision p);

struct DimRange {
  int64_t min = 1, opt = 1, max = 1;
  int64_t multiple = 1;  // the size is a multiple of this (a network that halves images four times: 16)
};

struct ExportInput {
  std::string name;
  Tensor example;
  std::map<int, std::string> dynamic = {};  // dimension -> symbol: "batch", "seq", "past", "total" (= past + seq)
};

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

using ExportForward = std::function<Tensors(const Tensors& inputs)>;

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
