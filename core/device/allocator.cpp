// SPDX-License-Identifier: Apache-2.0
#include "core/device/allocator.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <unordered_set>
#include <utility>

#include "core/device/graph.h"
#include "core/util/check.h"
#include "core/util/text.h"
#ifdef XY_WITH_CUDA
#include "core/device/cuda.h"
#endif

namespace xylem {
namespace {

constexpr size_t kRound = 512;      // every block's size is a multiple
constexpr size_t kSmall = 1 << 20;  // up to this, blocks come from 2 MiB segments
constexpr size_t kSmallSegment = 2 << 20;
constexpr size_t kMedium = 10 << 20;  // up to this, from 20 MiB segments
constexpr size_t kMediumSegment = 20 << 20;
constexpr size_t kLargeRound = 2 << 20;  // beyond, segments are multiples of this

// Where segments come from. take() returns null when the system has no more.
struct System {
  std::string name;
  std::function<void*(size_t)> take;
  std::function<void(void*)> give_back;
};

// A piece of a segment. Neighbours in memory are linked so that free pieces merge.
struct Piece {
  char* data;
  size_t bytes;
  CUstream_st* stream;
  uint64_t pool;
  bool small;
  bool used = false;
  const char* op = "";
  Piece *before = nullptr, *after = nullptr;
  std::vector<Stream> users = {};
  bool whole_segment() const { return !before && !after; }
};

class CachingAllocator final : public Allocator {
 public:
  explicit CachingAllocator(System system) : system_(std::move(system)) {}

  Block allocate(size_t bytes, Stream stream) override {
    std::lock_guard lock(mutex_);
    size_t size = (std::max<size_t>(bytes, 1) + kRound - 1) / kRound * kRound;
    bool small = size <= kSmall;
    reap(false);
    Piece* p = take_cached(size, small, stream.handle());
    if (!p) p = new_segment(size, small, stream.handle());
    if (!p && reap(true)) p = take_cached(size, small, stream.handle());
    if (!p && release_locked()) p = new_segment(size, small, stream.handle());
    if (!p) {
      std::string report = report_locked(size);
      throw OutOfMemory(report, current_op(), std::source_location::current(),
                        "use a smaller batch, activation recomputation or a lower precision");
    }
    split(p, size);
    p->used = true;
    p->op = current_op();
    live_.insert(p);
    stats_.allocated += int64_t(p->bytes);
    stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated);
    ++stats_.allocations;
    return {p->data, p->bytes, p};
  }

  void free(const Block& block) noexcept override {
    std::lock_guard lock(mutex_);
    Piece* p = static_cast<Piece*>(block.impl);
    live_.erase(p);
    stats_.allocated -= int64_t(p->bytes);
    p->users.empty() ? recycle(p) : retire(p);
  }

  void used_on(const Block& block, Stream stream) override {
    std::lock_guard lock(mutex_);
    auto& users = static_cast<Piece*>(block.impl)->users;
    if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
  }

  AllocatorStats stats() const override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() override {
    std::lock_guard lock(mutex_);
    stats_.peak_allocated = stats_.allocated;
    stats_.peak_reserved = stats_.reserved;
  }
  void release_cached() override {
    std::lock_guard lock(mutex_);
    release_locked();
  }
  std::string oom_report(size_t wanted) const override {
    std::lock_guard lock(mutex_);
    return report_locked(wanted);
  }
  void set_limit(int64_t bytes) override {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  void begin_pool(uint64_t id) override {
    std::lock_guard lock(mutex_);
    pool_ = id;
    pool_thread_ = std::this_thread::get_id();
    held_pools_.insert(id);
  }
  void end_pool() override {
    std::lock_guard lock(mutex_);
    pool_ = 0;
  }
  void release_pool(uint64_t id) override {
    std::lock_guard lock(mutex_);
    held_pools_.erase(id);
    std::erase_if(captured_, [&](auto& entry) {
      if (entry.first != id) return false;
      recycle(entry.second);
      return true;
    });
  }

 private:
  // A freed block, and how far its users have to come before it is free indeed.
  struct Retired {
    Piece* piece;
    std::vector<Event> events;
  };

  struct BySize {
    bool operator()(const Piece* a, const Piece* b) const {
      if (a->pool != b->pool) return a->pool < b->pool;
      if (a->stream != b->stream) return a->stream < b->stream;
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->data < b->data;
    }
  };
  using Cache = std::set<Piece*, BySize>;

  Cache& cache(const Piece* p) { return p->small ? small_ : large_; }
  uint64_t pool_here() const { return pool_thread_ == std::this_thread::get_id() ? pool_ : 0; }

  void recycle(Piece* p) {
    p->used = false;
    p = merge(p, p->before);
    p = merge(p, p->after);
    cache(p).insert(p);
  }

  void retire(Piece* p) noexcept {
    try {
      Retired r{p, {}};
      for (Stream s : std::exchange(p->users, {})) {
        if (capturing(s)) {  // every replay will use it
          captured_.emplace_back(pool_, p);
          return;
        }
        r.events.emplace_back().record(s);
      }
      retired_.push_back(std::move(r));
    } catch (const Error&) {
      // The device has failed and cannot say when it is done: the block is never handed out again.
    }
  }

  // Recycles the retired blocks whose users are done, or that of all after waiting for them. Returns whether there were
  // any. A capturing thread may not ask.
  bool reap(bool wait) {
    if (pool_here() != 0) return false;
    bool any = false;
    for (Retired& r : std::exchange(retired_, {})) {
      for (Event& e : r.events)
        if (wait) e.synchronize();
      const bool done = std::all_of(r.events.begin(), r.events.end(), [](const Event& e) { return e.done(); });
      done ? recycle(r.piece) : retired_.push_back(std::move(r));
      any = any || done;
    }
    return any;
  }

  Piece* take_cached(size_t size, bool small, CUstream_st* stream) {
    Cache& cached = small ? small_ : large_;
    const uint64_t pool = pool_here();
    Piece key{nullptr, size, stream, pool, small};
    auto it = cached.lower_bound(&key);
    if (it == cached.end() || (*it)->stream != stream || (*it)->pool != pool) return nullptr;
    Piece* p = *it;
    cached.erase(it);
    return p;
  }

  Piece* new_segment(size_t size, bool small, CUstream_st* stream) {
    size_t segment = small             ? kSmallSegment
                     : size <= kMedium ? kMediumSegment
                                       : (size + kLargeRound - 1) / kLargeRound * kLargeRound;
    if (limit_ > 0 && stats_.reserved + int64_t(segment) > limit_) return nullptr;
    void* data = system_.take(segment);
    if (!data) return nullptr;
    ++stats_.system_calls;
    stats_.reserved += int64_t(segment);
    stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
    return new Piece{static_cast<char*>(data), segment, stream, pool_here(), small};
  }

  void split(Piece* p, size_t size) {
    size_t rest = p->bytes - size;
    if (rest < (p->small ? kRound : kSmall)) return;
    Piece* tail = new Piece{p->data + size, rest, p->stream, p->pool, p->small};
    tail->before = p, tail->after = p->after;
    if (p->after) p->after->before = tail;
    p->after = tail;
    p->bytes = size;
    cache(tail).insert(tail);
  }

  Piece* merge(Piece* p, Piece* neighbour) {
    if (!neighbour || neighbour->used) return p;
    cache(neighbour).erase(neighbour);
    Piece *first = neighbour == p->before ? neighbour : p, *second = first == p ? neighbour : p;
    first->bytes += second->bytes;
    first->after = second->after;
    if (second->after) second->after->before = first;
    delete second;
    return first;
  }

  bool release_locked() {
    if (pool_ != 0) return false;
    bool any = false;
    for (Cache* cached : {&small_, &large_}) {
      for (auto it = cached->begin(); it != cached->end();) {
        Piece* p = *it;
        if (!p->whole_segment() || held_pools_.contains(p->pool)) {
          ++it;
          continue;
        }
        system_.give_back(p->data);
        ++stats_.system_calls;
        stats_.reserved -= int64_t(p->bytes);
        it = cached->erase(it);
        delete p;
        any = true;
      }
    }
    return any;
  }

  std::string report_locked(size_t wanted) const {
    std::ostringstream out;
    out << "out of " << system_.name << " memory: " << human_bytes(double(wanted)) << " wanted, "
        << human_bytes(double(stats_.allocated)) << " in use, "
        << human_bytes(double(stats_.reserved - stats_.allocated)) << " cached";
    if (limit_ > 0) out << ", limit " << human_bytes(double(limit_));
    std::vector<const Piece*> largest(live_.begin(), live_.end());
    std::sort(largest.begin(), largest.end(), [](auto* a, auto* b) { return a->bytes > b->bytes; });
    if (!largest.empty()) out << "; the largest live tensors:";
    for (size_t i = 0; i < std::min<size_t>(10, largest.size()); ++i)
      out << "\n  " << human_bytes(double(largest[i]->bytes)) << " made by "
          << (*largest[i]->op ? largest[i]->op : "the program");
    if (!largest.empty()) out << "\n ";
    return out.str();
  }

  System system_;
  mutable std::mutex mutex_;
  Cache small_, large_;
  std::unordered_set<Piece*> live_;
  std::set<uint64_t> held_pools_;
  std::vector<Retired> retired_;
  std::vector<std::pair<uint64_t, Piece*>> captured_;  // freed, but part of what this pool's graph does
  uint64_t pool_ = 0;
  std::thread::id pool_thread_;
  int64_t limit_ = 0;
  AllocatorStats stats_;
};

#ifdef XY_WITH_CUDA
// A capturing stream forbids allocation in the default mode, yet the graph's pool may have to grow.
struct AllowDuringCapture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  AllowDuringCapture() { XY_CUDA(cudaThreadExchangeStreamCaptureMode(&mode)); }
  ~AllowDuringCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }  // as before: that cannot fail
};

System cuda_system(Device device) {
  return {"GPU",
          [device](size_t n) -> void* {
            detail::DeviceGuard guard(device);
            AllowDuringCapture allow;
            void* p = nullptr;
            cudaError_t status = cudaMalloc(&p, n);
            if (status == cudaErrorMemoryAllocation) {
              cudaGetLastError();
              return nullptr;
            }
            XY_CUDA(status);
            return p;
          },
          [](void* p) { XY_CUDA(cudaFree(p)); }};
}
#endif

System host_system() {
  return {"host", [](size_t n) { return std::aligned_alloc(64, (n + 63) / 64 * 64); }, [](void* p) { std::free(p); }};
}

System pinned_system() {
#ifdef XY_WITH_CUDA
  if (cuda_available())
    return {"pinned host",
            [](size_t n) -> void* {
              AllowDuringCapture allow;
              void* p = nullptr;
              cudaError_t status = cudaHostAlloc(&p, n, cudaHostAllocPortable);
              if (status == cudaErrorMemoryAllocation) {
                cudaGetLastError();
                return nullptr;
              }
              XY_CUDA(status);
              return p;
            },
            [](void* p) { XY_CUDA(cudaFreeHost(p)); }};
#endif
  return host_system();
}

}  // namespace

// Allocators are never destroyed: tensors in static variables may outlive any order of destruction.
Allocator& allocator(Device device) {
  static auto* host = new CachingAllocator(host_system());
  if (!device.is_cuda()) return *host;
#ifdef XY_WITH_CUDA
  static auto* gpus = [] {
    auto* all = new std::vector<CachingAllocator*>;
    for (int i = 0; i < cuda_device_count(); ++i) all->push_back(new CachingAllocator(cuda_system(Device::cuda(i))));
    return all;
  }();
  XY_CHECK(size_t(device.index) < gpus->size(), "device ", device, " does not exist; ", gpus->size(),
           " GPU(s) are visible");
  return *(*gpus)[device.index];
#else
  XY_FAIL("device ", device, " needs a GPU build of Xylem");
#endif
}

Allocator& pinned_allocator() {
  static auto* pinned = new CachingAllocator(pinned_system());
  return *pinned;
}

}  // namespace xylem
