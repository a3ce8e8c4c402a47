// SPDX-License-Identifier: Apache-2.0
// Reading and writing ONNX files. Internal to models/export: the only folder that sees the protobuf classes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

// The generated classes of the official schema, <onnx/onnx.pb.h>, in the namespace xylem::onnx.
namespace xylem::onnx {
class ModelProto;
class TensorProto;
}  // namespace xylem::onnx

namespace xylem::onnx_file {

// Reads a model with its external data. Throws Error: not an ONNX file, a truncated one, external data that is missing,
// outside the folder or of the wrong length.
void load(const std::string& path, onnx::ModelProto& model);

struct SaveOptions {
  // Initializers of at least `external_min` bytes go to <name>.weights.bin beside the model, page aligned, when all of
  // them together exceed `external_over`.
  int64_t external_over = int64_t(3) << 29;  // 1.5 GiB
  int64_t external_min = 1024;
};
// Written under another name and renamed.
void save(const onnx::ModelProto& model, const std::string& path, const SaveOptions& options = {});

Tensor to_tensor(const onnx::TensorProto& proto);                                        // on the CPU
void to_proto(const Tensor& tensor, const std::string& name, onnx::TensorProto& proto);  // raw_data

}  // namespace xylem::onnx_file
