// SPDX-License-Identifier: Apache-2.0
// One safetensors file from a checkpoint that any number of processes wrote.
#pragma once
#include <optional>
#include <string>

#include "core/tensor/dtype.h"

namespace xylem {

struct ConsolidateOptions {
  std::string section = "model";    // or "ema", "optimizer"
  std::optional<DType> dtype = {};  // of floating point tensors; as they are stored otherwise
};

// Written aside and renamed. Tensors stream from file to file: memory does not grow with the model.
void consolidate(const std::string& folder, const std::string& out, const ConsolidateOptions& options = {});

}  // namespace xylem
