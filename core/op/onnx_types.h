// SPDX-License-Identifier: Apache-2.0
// ONNX's words in plain C++: element types, tensors and attributes. ONNX Runtime names element types by the same
// numbers.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor/tensor.h"

namespace xylem {

// TensorProto::DataType.
namespace onnx_types {
inline constexpr int undefined = 0, float32 = 1, uint8 = 2, int8 = 3, uint16 = 4, int16 = 5, int32 = 6, int64 = 7,
                     string = 8, boolean = 9, float16 = 10, float64 = 11, uint32 = 12, uint64 = 13, complex64 = 14,
                     complex128 = 15, bfloat16 = 16, float8 = 17, uint4 = 21, int4 = 22, float4 = 23;
}

int onnx_type(DType dtype);
std::optional<DType> find_dtype(int onnx_type);  // none for fp8, int4, strings and others that Xylem does not have
// The same, throwing with `owner`, whose type it is: "tensor 'w'".
DType dtype_from_onnx(int onnx_type, const std::string& owner = "a tensor");
bool is_onnx_float(int onnx_type);  // float32, float16, bfloat16
// Bytes of `elements` values, or -1 for a type without a fixed size (strings).
int64_t onnx_bytes(int onnx_type, int64_t elements);

struct OnnxTensor {
  std::string name;
  int type = onnx_types::float32;
  std::vector<int64_t> dims = {};
  Tensor data = {};  // on the CPU; fp8 and int4 as the bytes of the file (u8)
};

using OnnxAttr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, OnnxTensor>;
using OnnxAttrs = std::vector<std::pair<std::string, OnnxAttr>>;

}  // namespace xylem
