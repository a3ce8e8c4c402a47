// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/tensor/dtype.h"

namespace xylem {

// Calls f with Tag of the unsigned integer as wide as dtype: for operations that move values without reading them.
template <class F>
void visit_width(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(Tag<uint8_t>{});
    case 2:
      return f(Tag<uint16_t>{});
    case 4:
      return f(Tag<uint32_t>{});
    default:
      return f(Tag<uint64_t>{});
  }
}

}  // namespace xylem
