// SPDX-License-Identifier: Apache-2.0
#include "core/device/fault.h"

#include <mutex>
#include <utility>
#include <vector>

#include "core/util/check.h"

#ifdef XY_WITH_CUDA
#include "core/device/cuda.h"
#endif

namespace xylem {
namespace {

struct Kind {
  std::string op;
  Fault::Describe describe;
};
struct Registry {
  std::mutex mutex;
  std::vector<Kind> kinds;  // code 1 is the first
};
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

[[noreturn]] void throw_fault(const DeviceFault& f) {
  Kind kind;
  {
    std::lock_guard lock(registry().mutex);
    kind = registry().kinds.at(size_t(f.code - 1));
  }
  throw Error(kind.describe(f.value, f.bound), kind.op, std::source_location::current());
}

}  // namespace

Fault::Fault(std::string op, Describe describe) {
  std::lock_guard lock(registry().mutex);
  registry().kinds.push_back({std::move(op), describe});
  code_ = int64_t(registry().kinds.size());
}
void Fault::raise(int64_t value, int64_t bound) const { throw_fault({code_, value, bound}); }

#ifdef XY_WITH_CUDA

namespace {
constexpr int kMaxDevices = 16;
DeviceFault* slots[kMaxDevices] = {};
}  // namespace

FaultSink Fault::sink(Device device) const {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  DeviceFault*& slot = slots[device.index];
  if (!slot) {
    void* memory = nullptr;
    XY_CUDA(cudaHostAlloc(&memory, sizeof(DeviceFault), cudaHostAllocMapped | cudaHostAllocPortable));
    slot = new (memory) DeviceFault{};
  }
  return {slot, code_};
}

void check_device_errors(Device device) {
  if (!device.is_cuda() || !slots[device.index]) return;
  volatile DeviceFault* slot = slots[device.index];
  if (slot->code == 0) return;
  DeviceFault found{slot->code, slot->value, slot->bound};
  slot->code = 0;
  throw_fault(found);
}

#else

FaultSink Fault::sink(Device) const { return {nullptr, code_}; }
void check_device_errors(Device) {}

#endif

}  // namespace xylem
