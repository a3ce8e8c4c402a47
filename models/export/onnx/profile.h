// SPDX-License-Identifier: Apache-2.0
// What a graph is written for: the runtime, and the types that it computes in.
#pragma once
#include <string>

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

}  // namespace xylem
