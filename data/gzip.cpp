// SPDX-License-Identifier: Apache-2.0
#include "data/gzip.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/util/check.h"

#ifdef XY_WITH_ZLIB
#include <zlib.h>
#endif

namespace xylem {

#ifdef XY_WITH_ZLIB

bool built_with_zlib() { return true; }

std::vector<uint8_t> read_gzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  XY_CHECK(file, "cannot open ", path, ": ", std::strerror(errno));
  std::vector<uint8_t> bytes;
  size_t used = 0;
  int got = 0;
  do {
    bytes.resize(std::max<size_t>(size_t(1) << 20, 2 * used));
    got = gzread(file, bytes.data() + used, unsigned(std::min<size_t>(bytes.size() - used, size_t(1) << 30)));
    used += size_t(std::max(got, 0));
  } while (got > 0);
  int code = Z_OK;
  std::string message = got < 0 ? gzerror(file, &code) : "";
  // A file that ends inside a stream reads well up to its end; only closing tells.
  int closed = gzclose(file);
  XY_CHECK(got == 0 && closed == Z_OK, path, " is corrupt or truncated", message.empty() ? "" : " (" + message + ")",
           "; get it again");
  bytes.resize(used);
  return bytes;
}

void inflate_block(const void* source, size_t bytes, void* target, size_t expected) {
  uLongf size = expected;
  int status = uncompress(static_cast<Bytef*>(target), &size, static_cast<const Bytef*>(source), bytes);
  XY_CHECK(status == Z_OK && size == expected, "a compressed block is corrupt: it unpacks to ", size, " bytes, not ",
           expected,
           status == Z_OK          ? ""
           : status == Z_BUF_ERROR ? " (wrong length)"
                                   : " (bad data)");
}

#else

bool built_with_zlib() { return false; }
std::vector<uint8_t> read_gzip(const std::string& path) {
  XY_FAIL("cannot read ", path, ": this build of Xylem has no zlib; install zlib1g-dev and build again");
}
void inflate_block(const void*, size_t, void*, size_t) {
  XY_FAIL("compressed data needs zlib, which this build of Xylem lacks; install zlib1g-dev and build again");
}

#endif

}  // namespace xylem
