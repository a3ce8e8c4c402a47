// SPDX-License-Identifier: Apache-2.0
// Kernels over flat buffers: every thread takes vectors of V values, then what is left one by one.
#pragma once
#include "ops/backend/vec.cuh"

namespace xylem::cuda {

inline constexpr int kBlock = 256;

// Whether V values can be moved at once.
template <int V, class T>
bool wide(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (V * sizeof(T)) == 0;
}

// Calls f.template at<V>(i) for every i in [0, n) in steps of V, and f.template at<1>(i) for the rest.
template <int V, class F>
__device__ void each(int64_t n, F&& f) {
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, packs = n / V;
  for (int64_t i = thread; i < packs; i += int64_t(gridDim.x) * blockDim.x) f.template at<V>(i * V);
  if (V > 1 && thread < n - packs * V) f.template at<1>(packs * V + thread);
}

}  // namespace xylem::cuda
