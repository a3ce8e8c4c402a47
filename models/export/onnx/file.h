// SPDX-License-Identifier: Apache-2.0
// Reading and writing ONNX files. Internal to models/export: the only folder that sees the protobuf classes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/op/onnx_types.h"

// The generated classes of the official schema, <onnx/onnx.pb.h>, in the namespace xylem::onnx.
namespace xylem::onnx {
class ModelProto;
class TensorProto;
}  // namespace xylem::onnx

namespace xylem::onnx_file {

// Reads a model with its external data. Throws Error: not an ONNX file, a truncated one, external data that is missing,
// outside the folder or of the wrong length. `with_weights = false` leaves external data where it is.
void load(const std::string& path, onnx::ModelProto& model, bool with_weights = true);
// External data that was left there: what load() checks of it (the model stays as it is), and the bytes of one tensor.
void check_external(const std::string& folder, onnx::ModelProto& model);
std::string external_data(const std::string& folder, const onnx::TensorProto& tensor);

// Writes a model. Large initializers may go to <name>.weights.bin beside it, page aligned, as they come: memory need
// not hold them at once. Both files are written under other names until finish().
class Writer {
 public:
  Writer(const std::string& path, bool external);
  ~Writer();
  // The data of `t`, whose name, type and shape are set: in t itself if it is small or `external` is false.
  void add(onnx::TensorProto& t, const void* data, int64_t bytes);
  void finish(const onnx::ModelProto& model);

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

// Types that Xylem has; others (fp8, int4, strings) are an error that names the tensor.
Tensor to_tensor(const onnx::TensorProto& proto);                                        // on the CPU
void to_proto(const Tensor& tensor, const std::string& name, onnx::TensorProto& proto);  // raw_data

}  // namespace xylem::onnx_file
