// SPDX-License-Identifier: Apache-2.0
// A number beside a tensor: exact for every i64 and every double.
#pragma once
#include <cstdint>
#include <type_traits>

namespace xylem {

// Whether it was written as an integer decides the type of a result: x + 1 leaves an integer tensor one, x + 1.0 makes
// it f32. Floating point tensors keep their type with either.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value) : integer_(std::is_integral_v<T>) {  // NOLINT: implicit on purpose, x + 1
    if constexpr (std::is_integral_v<T>)
      whole_ = static_cast<int64_t>(value);
    else
      real_ = static_cast<double>(value);
  }
  constexpr bool is_integer() const { return integer_; }
  constexpr Scalar operator-() const { return integer_ ? Scalar(-whole_) : Scalar(-real_); }
  template <class T>
  constexpr T to() const {
    if constexpr (std::is_same_v<T, bool>)
      return integer_ ? whole_ != 0 : real_ != 0;
    else if constexpr (std::is_arithmetic_v<T>)
      return integer_ ? static_cast<T>(whole_) : static_cast<T>(real_);
    else
      return T(to<float>());  // the 16-bit floats
  }

 private:
  bool integer_;
  union {
    int64_t whole_;
    double real_;
  };
};

}  // namespace xylem
