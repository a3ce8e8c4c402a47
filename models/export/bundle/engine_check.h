// SPDX-License-Identifier: Apache-2.0
// The bundle's model in TensorRT itself.
#pragma once
#include <string>

#include "models/export/bundle/parts.h"
#include "models/export/bundle/triton.h"

namespace xylem {

// Builds an engine for the sizes of `model` and, where there is a GPU that TensorRT takes, runs it over `inputs` and
// compares with `outputs`. Needs tensorrt::available().
EngineCheck check_engine(const std::string& file, const triton::Model& model, const Tensors& inputs,
                         const Tensors& outputs, const Limits& limits);

}  // namespace xylem
