// SPDX-License-Identifier: Apache-2.0
// A folder that a deployment engineer can work with: the model, values to check any runtime against, what the lint
// says, a Triton model repository, a script that builds a TensorRT engine, and a README. It can prove itself in ONNX
// Runtime before it leaves the house.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "models/export/decoder.h"
#include "models/export/export.h"
#include "models/export/lint/lint.h"

namespace xylem {

struct BundleOptions {
  std::string name = "model";  // in the Triton repository: letters, digits, '_', '-', '.'
  std::string target = {};     // of the lint and the engine script, "trt10.9"; "": that of the profile
  ExportOptions graph = {};
  // Run the onnx checker, ONNX Runtime over the smallest, middle, largest and odd sizes, and, for TensorRT's profiles,
  // TensorRT.
  bool verify = false;
};

// One comparison of ONNX Runtime with the live model. bf16, of which ONNX Runtime's CPU has few kernels, is computed by
// import_onnx() in its place, in f32 with the weights of the file.
struct BundleCheck {
  std::string shapes;        // "image:1x3x32x32"
  bool optimized = false;    // with ONNX Runtime's graph optimization
  bool imported = false;     // by import_onnx()
  double worst = 0;          // largest |difference| / largest |value|
  double over_half_lsb = 0;  // of quantized models: the share of outputs further off than half a step of 1/127
  double limit = 0;          // for `worst`
  bool passed = false;
};

// What TensorRT itself makes of the model: that of the machine, whatever release the bundle is for. An engine is built
// for the smallest, usual and largest sizes, and run over the reference inputs where there is a GPU that it takes.
struct EngineCheck {
  std::string runtime;                 // "TensorRT-RTX 1.7.1"; "": the machine has none
  bool built = false;                  // parsed, and an engine came out
  std::vector<std::string> said = {};  // errors and warnings
  int64_t bytes = 0;                   // of the engine
  double seconds = 0;                  // to parse and build
  std::vector<BundleCheck> runs = {};  // over the reference inputs
  double milliseconds = 0;             // of an inference at the reference's sizes, median
  std::string not_run = {};            // why there are no runs
  bool refused() const { return !runtime.empty() && !built; }
};

struct BundleReport {
  ExportReport exported;
  LintReport lint;
  std::string checker;  // "passed" or what it said; "" when it did not run
  std::vector<BundleCheck> checks;
  std::optional<EngineCheck> engine;   // for TensorRT's profiles
  std::vector<std::string> unchecked;  // what verify could not run, and why
  std::vector<std::string> files;      // relative to the folder
  int64_t model_bytes = 0;
  bool failed() const;                                            // something is wrong
  bool passed() const { return !failed() && unchecked.empty(); }  // nothing is, and all that was asked for ran
  std::string text() const;
};

// Writes the bundle to `folder`, which must not exist or be a bundle that it replaces.
BundleReport export_bundle(Module& model, const ExportForward& forward, const std::vector<ExportInput>& inputs,
                           const std::string& folder, const BundleOptions& options = {});

// That of a language model with a key-value cache (models/export/decoder.h). It is verified by reading a prompt and
// going on token by token, against the live model that reads the whole text. The reference is computed by
// import_onnx(). `max_length`: of a fixed cache; 0: the model's context.
BundleReport export_decoder_bundle(LanguageModel& model, const std::string& folder, const BundleOptions& options = {},
                                   CacheKind cache = CacheKind::growing, int64_t max_length = 0);

// Compares an exported model with `forward` in ONNX Runtime at the given sizes of its dynamic dimensions. Random inputs
// are drawn from the values of the examples, so that tokens stay in the vocabulary.
std::vector<BundleCheck> verify_in_runtime(const std::string& model_file, const ExportForward& forward,
                                           const std::vector<ExportInput>& inputs, const ExportOptions& options,
                                           bool quantized);

}  // namespace xylem
