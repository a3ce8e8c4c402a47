// SPDX-License-Identifier: Apache-2.0
// Mistakes that only a kernel can see (an index out of range) reach the host without a synchronisation of their own:
// the kernel notes the first it meets in page-locked memory, and whoever next waits for the device throws it.
#pragma once
#include <cstdint>

#include "core/device/device.h"

namespace xylem {

enum class Fault : int64_t { none, embedding_index, select_index, gather_index, scatter_index, target_class };

struct DeviceFault {
  int64_t fault;  // a Fault; written last
  int64_t value;  // what was found
  int64_t bound;  // it should have been in [0, bound)
};

// Where kernels of the device note a fault: one address for the life of the process, so graphs may hold it.
DeviceFault* device_fault(Device device);

// Throws the noted fault, if any, and forgets it. Does not wait: call it after a synchronisation.
void check_device_errors(Device device);

// The same mistake met on the host.
[[noreturn]] void throw_fault(const DeviceFault& fault);

#ifdef __CUDACC__
namespace cuda {
__device__ inline void note_fault(DeviceFault* slot, Fault fault, int64_t value, int64_t bound) {
  volatile DeviceFault* s = slot;
  if (s->fault != 0) return;
  s->value = value;
  s->bound = bound;
  __threadfence_system();
  s->fault = static_cast<int64_t>(fault);
}
}  // namespace cuda
#endif

}  // namespace xylem
