// SPDX-License-Identifier: Apache-2.0
#include "core/util/hash.h"

namespace xylem {

std::string hex(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace xylem
