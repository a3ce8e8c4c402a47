// SPDX-License-Identifier: Apache-2.0
#include "core/device/cuda.h"
#include "core/tensor/tensor.h"

namespace xylem::cuda {
namespace {
__global__ void set(int64_t* counter, int64_t step) { *counter = step; }
__global__ void increment(int64_t* counter) { ++*counter; }
}  // namespace

void set_step(const Tensor& counter, uint64_t step) {
  set<<<1, 1, 0, cuda_stream(counter.device())>>>(counter.data<int64_t>(), int64_t(step));
  XY_CUDA(cudaGetLastError());
}
void increment_step(const Tensor& counter) {
  increment<<<1, 1, 0, cuda_stream(counter.device())>>>(counter.data<int64_t>());
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
