// SPDX-License-Identifier: Apache-2.0
#include "core/device/page_lock.h"

#include "core/device/device.h"
#ifdef XY_WITH_CUDA
#include "core/util/cuda.h"
#endif

namespace xylem {

std::shared_ptr<void> page_lock([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef XY_WITH_CUDA
  if (cuda_available()) {
    XY_CUDA(cudaHostRegister(data, bytes, cudaHostRegisterPortable));
    return {data, [](void* p) { cudaHostUnregister(p); }};
  }
#endif
  return {};
}

}  // namespace xylem
