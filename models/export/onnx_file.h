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
// outside the folder or of the wrong length. `with_weights = false` leaves external data where it is.
void load(const std::string& path, onnx::ModelProto& model, bool with_weights = true);

struct SaveOptions {
  // Initializers of at least `external_min` bytes go to <name>.weights.bin beside the model, page aligned, when all of
  // them together exceed `external_over`.
  int64_t external_over = int64_t(3) << 29;  // 1.5 GiB
  int64_t external_min = 1024;
};
// Written under another name and renamed. Takes the model by value: move it in when it is large.
void save(onnx::ModelProto model, const std::string& path, const SaveOptions& options = {});

// Types that Xylem has; others (fp8, int4, strings) are an error that names the tensor.
Tensor to_tensor(const onnx::TensorProto& proto);                                        // on the CPU
void to_proto(const Tensor& tensor, const std::string& name, onnx::TensorProto& proto);  // raw_data

int element_type(DType dtype);                             // TensorProto::DataType
DType dtype_of(int onnx_type, const std::string& tensor);  // the other way; throws naming the tensor
// Bytes of `elements` values of an ONNX type, or -1 for one without a fixed size (strings).
int64_t byte_size(int onnx_type, int64_t elements);

}  // namespace xylem::onnx_file
