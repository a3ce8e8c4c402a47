// SPDX-License-Identifier: Apache-2.0
// Mistakes that only a kernel can see (an index out of range) reach the host without a synchronisation of their own:
// the kernel notes the first it meets in page-locked memory, and whoever next waits for the device throws it.
#pragma once
#include <cstdint>
#include <string>

#include "core/device/device.h"

namespace xylem {

struct DeviceFault {
  int64_t code;   // of a Fault, 0 for none; written last
  int64_t value;  // what was found
  int64_t bound;  // it should have been in [0, bound)
};

// What a kernel gets to note a fault with.
struct FaultSink {
  DeviceFault* slot;  // one address for the life of the process, so graphs may hold it
  int64_t code;
#ifdef __CUDACC__
  __device__ void note(int64_t value, int64_t bound) const {
    volatile DeviceFault* s = slot;
    if (s->code != 0) return;
    s->value = value;
    s->bound = bound;
    __threadfence_system();
    s->code = code;
  }
#endif
};

// A kind of mistake that an operation can meet: a static object in the operation's file, within the tree or outside.
class Fault {
 public:
  using Describe = std::string (*)(int64_t value, int64_t bound);  // the error's sentence
  Fault(std::string op, Describe describe);
  FaultSink sink(Device device) const;                          // for kernels of the device
  [[noreturn]] void raise(int64_t value, int64_t bound) const;  // the same mistake met on the host

 private:
  int64_t code_;
};

// Throws the noted fault, if any, and forgets it. Does not wait: call it after a synchronisation.
void check_device_errors(Device device);

}  // namespace xylem
