// SPDX-License-Identifier: Apache-2.0
// Input and output values kept beside an exported model, so that any runtime can be checked against them.
#pragma once
#include <string>

#include "core/tensor/tensor.h"

namespace xylem {

// NumPy's format, version 1.0. bf16 is written as f32.
void save_npy(const std::string& path, const Tensor& tensor);
// The bare values in row-major order, as trtexec reads them.
void save_bin(const std::string& path, const Tensor& tensor);
// A Triton inference request in JSON (KServe protocol, version 2).
std::string inference_request(const std::vector<std::string>& names, const Tensors& inputs);

}  // namespace xylem
