// SPDX-License-Identifier: Apache-2.0
// For sources that call the CUDA runtime: the error check. Kernels find their building blocks in kernel.cuh.
#pragma once
#include <cuda_runtime.h>

#include <source_location>

#include "core/device/device.h"
#include "core/util/check.h"

namespace xylem::detail {
[[noreturn]] void fail_cuda(cudaError_t status, const char* call, std::source_location where);
inline void check_cuda(cudaError_t status, const char* call,
                       std::source_location where = std::source_location::current()) {
  if (status != cudaSuccess) fail_cuda(status, call, where);
}

// This thread's current device while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};
}  // namespace xylem::detail

namespace xylem::cuda {
int64_t events_made();               // by all Events of this process; one that nobody holds any more is used again
int multiprocessors(Device device);  // cached
}  // namespace xylem::cuda

#define XY_CUDA(call) ::xylem::detail::check_cuda((call), #call)
