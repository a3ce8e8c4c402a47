// SPDX-License-Identifier: Apache-2.0
#include "data/idx.h"

#include "data/gzip.h"

namespace xylem {

Tensor read_idx(const std::string& path) {
  std::vector<uint8_t> bytes = read_gzip(path);
  XY_CHECK(bytes.size() >= 4 && bytes[0] == 0 && bytes[1] == 0 && bytes[3] >= 1 && bytes[3] <= kMaxRank, path,
           " is not an IDX file");
  XY_CHECK(bytes[2] == 0x08, path, " is an IDX file of element type ", int(bytes[2]), "; only bytes (8) are supported");
  size_t header = 4 + 4 * size_t(bytes[3]);
  XY_CHECK(bytes.size() >= header, path, " is truncated: it ends inside its header, after ", bytes.size(), " bytes");
  Shape shape;
  for (size_t at = 4; at < header; at += 4)
    shape.push_back(int64_t(bytes[at]) << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3]);
  XY_CHECK(int64_t(bytes.size() - header) == shape.numel(), path, " is truncated or damaged: its header says ", shape,
           ", that is ", shape.numel(), " bytes, but ", bytes.size() - header, " follow");
  return from_bytes(bytes.data() + header, shape, u8);
}

}  // namespace xylem
