// SPDX-License-Identifier: Apache-2.0
#include "core/op/onnx_types.h"

namespace xylem {
namespace {

namespace type = onnx_types;

constexpr std::pair<DType, int> kTypes[] = {{f64, type::float64},   {f32, type::float32}, {f16, type::float16},
                                            {bf16, type::bfloat16}, {i64, type::int64},   {i32, type::int32},
                                            {i8, type::int8},       {u8, type::uint8},    {boolean, type::boolean}};

}  // namespace

int onnx_type(DType dtype) {
  for (auto [known, code] : kTypes)
    if (known == dtype) return code;
  XY_FAIL("ONNX has no element type for ", dtype);
}

std::optional<DType> find_dtype(int onnx_type) {
  for (auto [dtype, code] : kTypes)
    if (code == onnx_type) return dtype;
  return {};
}

DType dtype_from_onnx(int onnx_type, const std::string& owner) {
  const std::optional<DType> dtype = find_dtype(onnx_type);
  XY_CHECK(dtype, owner, " has the ONNX element type ", onnx_type, ", which Xylem does not have");
  return *dtype;
}

bool is_onnx_float(int t) { return t == type::float32 || t == type::float16 || t == type::bfloat16; }

int64_t onnx_bytes(int onnx_type, int64_t elements) {
  switch (onnx_type) {
    case type::complex128:
      return elements * 16;
    case type::float64:
    case type::int64:
    case type::uint64:
    case type::complex64:
      return elements * 8;
    case type::float32:
    case type::int32:
    case type::uint32:
      return elements * 4;
    case type::float16:
    case type::bfloat16:
    case type::int16:
    case type::uint16:
      return elements * 2;
    case type::string:
    case type::undefined:
      return -1;
    case type::uint4:  // two to a byte
    case type::int4:
    case type::float4:
      return (elements + 1) / 2;
    default:
      return elements;
  }
}

}  // namespace xylem
