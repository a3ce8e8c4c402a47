// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli polynomial, RFC 3720): checksums of checkpoints and of TensorBoard records.
#pragma once
#include <cstddef>
#include <cstdint>

namespace xylem {

// Continues from `crc`, the value returned for the bytes before.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace xylem
