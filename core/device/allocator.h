// SPDX-License-Identifier: Apache-2.0
// Caching allocators: freed blocks stay with the stream that used them and are handed out again without a driver call.
// Size classes follow PyTorch's c10 allocator: 512 B rounding, small blocks from 2 MiB segments, medium from 20 MiB.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device/device.h"

namespace xylem {

struct AllocatorStats {
  int64_t allocated = 0;       // bytes in live blocks
  int64_t peak_allocated = 0;  // since reset_peak()
  int64_t reserved = 0;        // bytes taken from the system
  int64_t peak_reserved = 0;
  int64_t allocations = 0;   // blocks handed out so far
  int64_t system_calls = 0;  // trips to cudaMalloc, cudaMallocHost or the heap; constant in steady state
};

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
  void* impl = nullptr;
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // Throws OutOfMemory with the report of oom_report() when neither the cache nor the system can serve it.
  virtual Block allocate(size_t bytes, Stream stream) = 0;
  virtual void free(const Block& block) noexcept = 0;
  // Once freed, the live block is not handed out again before `stream` has done what it has been given until then. For
  // memory that is used by other streams than the one it was allocated for: pinned memory, which belongs to the host.
  virtual void used_on(const Block& block, Stream stream) = 0;
  virtual AllocatorStats stats() const = 0;
  virtual void reset_peak() = 0;
  virtual void release_cached() = 0;  // gives unused segments back to the system, unless a pool is being filled
  virtual std::string oom_report(size_t wanted) const = 0;  // the ten largest live blocks with the ops that made them
  virtual void set_limit(int64_t bytes) = 0;                // at most this much from the system; 0: no limit
  // Blocks that this thread allocates between begin_pool and end_pool come from, and return to, a pool of their own
  // (CUDA graphs). Nothing goes back to the system meanwhile: no stream may wait for another during a capture.
  virtual void begin_pool(uint64_t id) = 0;
  virtual void end_pool() = 0;
  virtual void release_pool(uint64_t id) = 0;
};

Allocator& allocator(Device device);  // the device's memory; host memory for the CPU (64-byte aligned)
Allocator& pinned_allocator();        // page-locked host memory; plain host memory without a GPU

}  // namespace xylem
