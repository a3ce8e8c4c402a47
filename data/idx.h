// SPDX-License-Identifier: Apache-2.0
// IDX files, the format of MNIST and its relatives: a big-endian header of dimensions, then bytes.
#pragma once
#include <string>

#include "core/tensor/tensor.h"

namespace xylem {

// A u8 tensor. The file may be gzipped. Throws naming the file if it is missing, no IDX file of bytes, or truncated.
Tensor read_idx(const std::string& path);

}  // namespace xylem
