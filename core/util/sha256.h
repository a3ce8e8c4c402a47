// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), which names weights in metadata.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace xylem {

class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  std::string hex();  // of everything added; nothing may be added afterwards

 private:
  void block(const uint8_t* data);
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> buffer_{};
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

}  // namespace xylem
