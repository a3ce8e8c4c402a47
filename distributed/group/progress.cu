// SPDX-License-Identifier: Apache-2.0
#include "core/device/cuda.h"
#include "core/device/device.h"

namespace xylem::cuda {
namespace {
__global__ void store(volatile int32_t* word, int32_t value) { *word = value; }
}  // namespace

void store_progress(int32_t* word, int32_t value, Stream stream) {
  store<<<1, 1, 0, stream.handle()>>>(word, value);
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
