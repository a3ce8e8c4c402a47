// SPDX-License-Identifier: Apache-2.0
// Element types and the dispatch from a run-time type to a C++ type.
#pragma once
#include <string>
#include <string_view>
#include <type_traits>

#include "core/tensor/half.h"
#include "core/util/check.h"

namespace xylem {

enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, i8, u8, boolean };
inline constexpr DType f64 = DType::f64, f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16, i64 = DType::i64,
                       i32 = DType::i32, i8 = DType::i8, u8 = DType::u8, boolean = DType::boolean;

constexpr size_t size_of(DType t) {
  constexpr size_t bytes[] = {8, 4, 2, 2, 8, 4, 1, 1, 1};
  return bytes[static_cast<int>(t)];
}
constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i64:
      return "i64";
    case DType::i32:
      return "i32";
    case DType::i8:
      return "i8";
    case DType::u8:
      return "u8";
    case DType::boolean:
      break;
  }
  return "bool";
}
constexpr bool is_float(DType t) { return t <= DType::bf16; }
constexpr bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }
DType parse_dtype(std::string_view name);  // "f32", "float32", "bf16", ... ; throws on an unknown name
inline std::ostream& operator<<(std::ostream& out, DType t) { return out << name_of(t); }

// The type that holds the result of `a op b`: floats win over integers, wider over narrower, f16 with bf16 gives f32.
DType promote(DType a, DType b);

template <class T>
inline constexpr DType dtype_of = [] {
  if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, float16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, bfloat16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DType::i8;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
}();

// Arithmetic type for values stored as T: double for double, float for the other floats.
template <class T>
using acc_t =
    std::conditional_t<std::is_same_v<T, double>, double, std::conditional_t<std::is_integral_v<T>, T, float>>;

template <class T>
struct Tag {
  using type = T;
};

// Calls f(Tag<T>{}) with the C++ type of `t`: visit_float(x.dtype(), [&](auto tag) { using T = decltype(tag)::type; ...
// }).
template <class F>
decltype(auto) visit_float(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f(Tag<double>{});
    case DType::f32:
      return f(Tag<float>{});
    case DType::f16:
      return f(Tag<float16>{});
    case DType::bf16:
      return f(Tag<bfloat16>{});
    default:
      XY_FAIL("needs a floating point tensor but got ", name_of(t), "; convert it with .to(xylem::f32)");
  }
}
template <class F>
decltype(auto) visit_index(DType t, F&& f) {
  switch (t) {
    case DType::i64:
      return f(Tag<int64_t>{});
    case DType::i32:
      return f(Tag<int32_t>{});
    default:
      XY_FAIL("needs an i64 or i32 tensor of indices but got ", name_of(t), "; convert it with .to(xylem::i64)");
  }
}
template <class F>
decltype(auto) visit_any(DType t, F&& f) {
  switch (t) {
    case DType::i64:
      return f(Tag<int64_t>{});
    case DType::i32:
      return f(Tag<int32_t>{});
    case DType::i8:
      return f(Tag<int8_t>{});
    case DType::u8:
      return f(Tag<uint8_t>{});
    case DType::boolean:
      return f(Tag<bool>{});
    default:
      return visit_float(t, f);
  }
}

}  // namespace xylem
