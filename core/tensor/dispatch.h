// SPDX-License-Identifier: Apache-2.0
// XY_ON_DEVICE(x, fn, args...): calls cuda::fn(args...) where x lives on a GPU, else cpu::fn(args...). A CPU build
// refuses GPU tensors instead.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem::detail {
inline void require_cpu(const Tensor& t) {
  XY_CHECK(!t.is_cuda(), "the tensor is on ", t.device(), " but this build of Xylem has no GPU support");
}
}  // namespace xylem::detail

#ifdef XY_WITH_CUDA
#define XY_ON_DEVICE(tensor, fn, ...) ((tensor).is_cuda() ? cuda::fn(__VA_ARGS__) : cpu::fn(__VA_ARGS__))
#else
#define XY_ON_DEVICE(tensor, fn, ...) (::xylem::detail::require_cpu(tensor), cpu::fn(__VA_ARGS__))
#endif
