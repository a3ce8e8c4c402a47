// SPDX-License-Identifier: Apache-2.0
#include "core/device/page_lock.h"

#include "core/device/device.h"
#ifdef XY_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace xylem {

std::shared_ptr<void> page_lock([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef XY_WITH_CUDA
  if (cuda_available()) {
    if (cudaHostRegister(data, bytes, cudaHostRegisterPortable) == cudaSuccess)
      return {data, [](void* p) { cudaHostUnregister(p); }};
    cudaGetLastError();  // or the next check of a launch would find it
  }
#endif
  return {};
}

}  // namespace xylem
