// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/tensor/tensor.h"

namespace xylem::zoo {

// Images as a model with weights of type `dtype` computes them: channels last on a GPU, where the convolutions of
// 16-bit types are fastest so.
inline Tensor image_input(const Tensor& x, DType dtype) {
  Tensor y = x.to(dtype);
  if (!y.is_cuda() || y.rank() != 4) return y;
  return y.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
}

}  // namespace xylem::zoo
