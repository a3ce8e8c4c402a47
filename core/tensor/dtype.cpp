// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dtype.h"

#include <algorithm>

namespace xylem {

DType parse_dtype(std::string_view name) {
  constexpr std::pair<std::string_view, DType> names[] = {
      {"f64", f64},       {"float64", f64}, {"double", f64}, {"f32", f32},     {"float32", f32}, {"float", f32},
      {"f16", f16},       {"float16", f16}, {"half", f16},   {"fp16", f16},    {"fp32", f32},    {"bf16", bf16},
      {"bfloat16", bf16}, {"i64", i64},     {"int64", i64},  {"i32", i32},     {"int32", i32},   {"i8", i8},
      {"int8", i8},       {"u8", u8},       {"uint8", u8},   {"bool", boolean}};
  for (auto [n, t] : names)
    if (n == name) return t;
  XY_FAIL("unknown dtype \"", name, "\"; use one of f64 f32 f16 bf16 i64 i32 i8 u8 bool");
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_float(a) != is_float(b)) return is_float(a) ? a : b;
  if (is_half(a) && is_half(b)) return f32;
  if (is_float(a)) return std::min(a, b);  // declared from wide to narrow
  if ((a == i8 && b == u8) || (a == u8 && b == i8)) return i32;
  return std::min(a, b);
}

}  // namespace xylem
