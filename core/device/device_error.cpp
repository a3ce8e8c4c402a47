// SPDX-License-Identifier: Apache-2.0
#include "core/device/device_error.h"

#include <mutex>

#include "core/util/check.h"

#ifdef XY_WITH_CUDA
#include "core/util/cuda.h"
#endif

namespace xylem {

void throw_fault(const DeviceFault& f) {
  auto fail = [](const char* op, std::string message) {
    throw Error(std::move(message), op, std::source_location::current());
  };
  switch (static_cast<Fault>(f.fault)) {
    case Fault::embedding_index:
      fail("embedding", detail::concat("index ", f.value, " is outside a table of ", f.bound, " rows"));
      break;
    case Fault::select_index:
      fail("index_select", detail::concat("index ", f.value, " is outside a dimension of size ", f.bound));
      break;
    case Fault::gather_index:
      fail("gather", detail::concat("index ", f.value, " is outside a dimension of size ", f.bound));
      break;
    case Fault::scatter_index:
      fail("scatter_add", detail::concat("index ", f.value, " is outside a dimension of size ", f.bound));
      break;
    case Fault::target_class:
      fail("cross_entropy",
           detail::concat("target ", f.value, " is outside the ", f.bound, " classes and is not ignore_index"));
      break;
    case Fault::none:
      break;
  }
  XY_FAIL("unknown device fault ", f.fault);
}

#ifdef XY_WITH_CUDA

namespace {
constexpr int kMaxDevices = 16;
DeviceFault* slots[kMaxDevices] = {};
}  // namespace

DeviceFault* device_fault(Device device) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  DeviceFault*& slot = slots[device.index];
  if (!slot) {
    void* memory = nullptr;
    XY_CUDA(cudaHostAlloc(&memory, sizeof(DeviceFault), cudaHostAllocMapped | cudaHostAllocPortable));
    slot = new (memory) DeviceFault{};
  }
  return slot;
}

void check_device_errors(Device device) {
  if (!device.is_cuda() || !slots[device.index]) return;
  volatile DeviceFault* slot = slots[device.index];
  if (slot->fault == 0) return;
  DeviceFault found{slot->fault, slot->value, slot->bound};
  slot->fault = 0;
  throw_fault(found);
}

#else

DeviceFault* device_fault(Device) { return nullptr; }
void check_device_errors(Device) {}

#endif

}  // namespace xylem
