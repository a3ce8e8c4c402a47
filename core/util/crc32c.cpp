// SPDX-License-Identifier: Apache-2.0
#include "core/util/crc32c.h"

#include <array>
#include <cstring>

#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace xylem {
namespace {

[[maybe_unused]] constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c & 1 ? 0x82f63b78u ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}();

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
#ifdef __SSE4_2__
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    crc = uint32_t(_mm_crc32_u64(crc, word));
  }
  for (; bytes > 0; ++p, --bytes) crc = _mm_crc32_u8(crc, *p);
#else
  for (; bytes > 0; ++p, --bytes) crc = kTable[(crc ^ *p) & 0xff] ^ (crc >> 8);
#endif
  return ~crc;
}

}  // namespace xylem
