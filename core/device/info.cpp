// SPDX-License-Identifier: Apache-2.0
#include "core/device/info.h"

#ifdef XY_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace xylem {

std::vector<GpuInfo> gpus() {
  std::vector<GpuInfo> found;
#ifdef XY_WITH_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    found.push_back({p.name, p.major, p.minor, p.multiProcessorCount, int64_t(p.totalGlobalMem)});
  }
  cudaGetLastError();
#endif
  return found;
}

}  // namespace xylem
