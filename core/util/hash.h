// SPDX-License-Identifier: Apache-2.0
// Small hashes, for names and for comparing ranks. They guard against accidents, not against adversaries.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace xylem {

inline constexpr uint64_t kFnvStart = 0xcbf29ce484222325;
// FNV-1a. Continues from `hash`, the value returned for the bytes before.
inline uint64_t fnv1a(std::string_view bytes, uint64_t hash = kFnvStart) {
  for (char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// `hash` with one more word; one-to-one in either, so any bit that changes changes the result.
inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15;
  return hash ^ (hash >> 32);
}

std::string hex(uint64_t value);  // sixteen digits

}  // namespace xylem
