// SPDX-License-Identifier: Apache-2.0
// Token files: a 32-byte header and the tokens, little-endian, so that a file can be mapped and says what it holds.
//   bytes 0-7   "XYTOKENS"
//   bytes 8-11  version (1)
//   bytes 12-15 bytes per token: 1, 2 or 4 (unsigned)
//   bytes 16-23 number of tokens
//   bytes 24-31 vocabulary size: every token is smaller
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace xylem {

class TokenFile {
 public:
  // Maps the file. Throws naming the file if it is no token file, of a newer version, or shorter than it says.
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  int64_t size() const { return count_; }
  int64_t vocab() const { return vocab_; }
  int bytes_per_token() const { return width_; }
  // Throws if a token is outside the vocabulary.
  void read(int64_t begin, int64_t count, int32_t* out) const;

 private:
  std::string path_;
  void* map_ = nullptr;
  size_t bytes_ = 0;
  int64_t count_ = 0, vocab_ = 0;
  int width_ = 0;
};

// Both write aside and rename, so that a file is complete or absent: bytes as tokens of vocabulary 256, and tokens of
// any vocabulary in the narrowest width that holds it.
void write_byte_tokens(const std::string& path, std::string_view text);
void write_tokens(const std::string& path, std::span<const uint32_t> tokens, int64_t vocab);

}  // namespace xylem
