// SPDX-License-Identifier: Apache-2.0
// What is traced: a function of tensors, with an example of each and the dimensions that may change.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "core/tensor/tensor.h"

namespace xylem {

struct DimRange {
  int64_t min = 1, opt = 1, max = 1;
  int64_t multiple = 1;  // the size is a multiple of this (a network that halves images four times: 16)
};

struct ExportInput {
  std::string name;
  Tensor example;
  std::map<int, std::string> dynamic = {};  // dimension -> symbol: "batch", "seq", "past", "total" (= past + seq)
};

using ExportForward = std::function<Tensors(const Tensors& inputs)>;

}  // namespace xylem
