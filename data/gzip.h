// SPDX-License-Identifier: Apache-2.0
// gzip files and deflated blocks. In a build without zlib both functions throw.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace xylem {

bool built_with_zlib();

// The whole file, unpacked; a file that is not gzip is returned as it is. Throws naming the file if it is missing,
// corrupt or truncated.
std::vector<uint8_t> read_gzip(const std::string& path);

// Unpacks a zlib stream that must yield exactly `expected` bytes.
void inflate_block(const void* source, size_t bytes, void* target, size_t expected);

}  // namespace xylem
