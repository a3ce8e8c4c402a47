// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/shape.h"

namespace xylem {

std::string Shape::str() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string(dims_[i]);
  return s + "]";
}

Strides contiguous_strides(const Shape& shape) {
  Strides s = Shape::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i) s[i] = s[i + 1] * std::max<int64_t>(shape[i + 1], 1);
  return s;
}

Shape broadcast(const Shape& a, const Shape& b) {
  int rank = std::max(a.rank(), b.rank());
  Shape out = Shape::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    int64_t x = i <= a.rank() ? a[a.rank() - i] : 1, y = i <= b.rank() ? b[b.rank() - i] : 1;
    XY_CHECK(x == y || x == 1 || y == 1, "shapes ", a, " and ", b, " do not broadcast: ", x, " against ", y,
             " at dimension ", -i);
    out[rank - i] = x == 1 ? y : x;
  }
  return out;
}

}  // namespace xylem
