// SPDX-License-Identifier: Apache-2.0
#include "data/tokens.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/util/check.h"
#include "core/util/file.h"
#include "core/util/git_lfs.h"
#include "data/dataset.h"

namespace xylem {
namespace {

constexpr char kMagic[8] = {'X', 'Y', 'T', 'O', 'K', 'E', 'N', 'S'};
struct Header {
  char magic[8];
  uint32_t version, width;
  uint64_t count, vocab;
};
static_assert(sizeof(Header) == 32);

class TokenWindows final : public Dataset {
 public:
  TokenWindows(const std::string& path, int64_t sequence, int64_t stride)
      : file_(path), sequence_(sequence), stride_(stride > 0 ? stride : sequence) {
    XY_CHECK(sequence > 0, "token dataset: sequence length ", sequence, " must be positive");
    XY_CHECK(file_.size() > sequence, path, " holds ", file_.size(), " tokens, too few for one window of ", sequence,
             " + 1; use a shorter sequence or more text");
    spec_.task = RecordSpec::Task::language_modelling;
    spec_.input = {sequence + 1};
    spec_.input_dtype = i32;
    spec_.classes = file_.vocab();
  }
  int64_t size() const override { return (file_.size() - 1 - sequence_) / stride_ + 1; }
  const RecordSpec& spec() const override { return spec_; }
  void read(int64_t id, void* input, void*) const override {
    file_.read(id * stride_, sequence_ + 1, static_cast<int32_t*>(input));
  }

 private:
  TokenFile file_;
  int64_t sequence_, stride_;
  RecordSpec spec_;
};

}  // namespace

TokenFile::TokenFile(const std::string& path) : path_(path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  XY_CHECK(fd >= 0, "cannot open token file ", path, ": ", std::strerror(errno),
           "; make one with `xylem data text FILE --out DIR`");
  struct Close {
    int fd;
    ~Close() { close(fd); }
  } closing{fd};
  struct stat info;
  XY_CHECK(fstat(fd, &info) == 0, "cannot read ", path, ": ", std::strerror(errno));
  Header h{};
  refuse_git_lfs_pointer(path);
  bool whole = info.st_size >= off_t(sizeof h) && ::read(fd, &h, sizeof h) == ssize_t(sizeof h);
  XY_CHECK(whole && std::memcmp(h.magic, kMagic, sizeof kMagic) == 0, path,
           " is not a token file; make one with `xylem data text FILE --out DIR`");
  XY_CHECK(h.version == 1, path, " is a token file of version ", h.version, "; this Xylem reads version 1");
  XY_CHECK(h.width == 1 || h.width == 2 || h.width == 4, path, " has tokens of ", h.width,
           " bytes; 1, 2 or 4 are valid");
  XY_CHECK(h.count <= (uint64_t(info.st_size) - sizeof h) / h.width, path, " is truncated: its header says ", h.count,
           " tokens of ", h.width, " bytes, but the file holds ", (info.st_size - off_t(sizeof h)) / h.width,
           "; write it again");
  bytes_ = size_t(info.st_size);
  count_ = int64_t(h.count), vocab_ = int64_t(h.vocab), width_ = int(h.width);
  map_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
  XY_CHECK(map_ != MAP_FAILED, "cannot map ", path, ": ", std::strerror(errno));
}
TokenFile::~TokenFile() {
  if (map_ && map_ != MAP_FAILED) munmap(map_, bytes_);
}

void TokenFile::read(int64_t begin, int64_t count, int32_t* out) const {
  XY_CHECK(begin >= 0 && begin + count <= count_, path_, ": tokens ", begin, " to ", begin + count, " of ", count_);
  const char* data = static_cast<const char*>(map_) + sizeof(Header);
  switch (width_) {
    case 1:
      std::copy_n(reinterpret_cast<const uint8_t*>(data) + begin, count, out);
      break;
    case 2:
      std::copy_n(reinterpret_cast<const uint16_t*>(data) + begin, count, out);
      break;
    default:
      std::copy_n(reinterpret_cast<const int32_t*>(data) + begin, count, out);
      break;
  }
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, uint32_t(out[i]));
  XY_CHECK(count == 0 || largest < uint64_t(vocab_), path_, ": token ", largest, " among tokens ", begin, " to ",
           begin + count, " is outside the vocabulary of ", vocab_);
}

namespace {
void write_file(const std::string& path, int width, const void* tokens, size_t count, int64_t vocab) {
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = 1, h.width = uint32_t(width), h.count = count, h.vocab = uint64_t(vocab);
  replace_file(
      path, {{reinterpret_cast<const char*>(&h), sizeof h}, {static_cast<const char*>(tokens), count * size_t(width)}});
}
}  // namespace

void write_byte_tokens(const std::string& path, std::string_view text) {
  write_file(path, 1, text.data(), text.size(), 256);
}

void write_tokens(const std::string& path, std::span<const uint32_t> tokens, int64_t vocab) {
  for (size_t i = 0; i < tokens.size(); ++i)
    XY_CHECK(int64_t(tokens[i]) < vocab, path, ": token ", tokens[i], " at ", i, " is outside the vocabulary of ",
             vocab);
  if (vocab <= 256) {
    std::vector<uint8_t> narrow(tokens.begin(), tokens.end());
    write_file(path, 1, narrow.data(), narrow.size(), vocab);
  } else if (vocab <= 65536) {
    std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
    write_file(path, 2, narrow.data(), narrow.size(), vocab);
  } else {
    write_file(path, 4, tokens.data(), tokens.size(), vocab);
  }
}

std::shared_ptr<Dataset> token_dataset(const std::string& path, int64_t sequence, int64_t stride) {
  return std::make_shared<TokenWindows>(path, sequence, stride);
}

}  // namespace xylem
