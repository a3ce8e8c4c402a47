// SPDX-License-Identifier: Apache-2.0
#include "core/device/device.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/device/graph.h"
#include "core/util/check.h"

#ifdef XY_WITH_CUDA
#include "core/device/cuda.h"
#endif

namespace xylem {

Device Device::parse(std::string_view text) {
  if (text == "cpu") return cpu();
  if (text == "auto") return cuda_available() ? cuda(0) : cpu();
  if (text.starts_with("cuda")) {
    std::string_view rest = text.substr(4);
    int index = 0;
    if (!rest.empty()) {
      const char *begin = rest.data() + 1, *end = rest.data() + rest.size();
      auto [stop, error] = std::from_chars(begin, std::max(begin, end), index);
      const bool number = rest[0] == ':' && stop == end && error != std::errc::invalid_argument && *begin != '-';
      XY_CHECK(number, "unknown device \"", text, "\"; use cpu, cuda, cuda:N or auto");
      if (error == std::errc::result_out_of_range) index = std::numeric_limits<int>::max();
    }
    XY_CHECK(built_with_cuda(), "device \"", text, "\" asked for, but this build of Xylem is for the CPU alone");
    int count = cuda_device_count();
    XY_CHECK(index < count, "device \"", text, "\" asked for, but ", count, " GPU(s) are visible; see `xylem doctor`");
    return cuda(index);
  }
  XY_FAIL("unknown device \"", text, "\"; use cpu, cuda, cuda:N or auto");
}

#ifdef XY_WITH_CUDA

namespace detail {
void fail_cuda(cudaError_t status, const char* call, std::source_location where) {
  fail(concat("CUDA: ", cudaGetErrorString(status), " in ", call), where,
       "set CUDA_LAUNCH_BLOCKING=1 to find the kernel");
}

DeviceGuard::DeviceGuard(Device device) {
  XY_CUDA(cudaGetDevice(&previous_));
  XY_CUDA(cudaSetDevice(device.index));
}
DeviceGuard::~DeviceGuard() { (void)cudaSetDevice(previous_); }  // it was current: that cannot fail
}  // namespace detail

int cuda_device_count() {
  static const int count = [] {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    return n;
  }();
  return count;
}

namespace cuda {
int multiprocessors(Device device) {
  static int cached[128] = {};
  int& n = cached[device.index];
  if (n == 0) XY_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device.index));
  return n;
}
}  // namespace cuda

Stream Stream::create(Device device, bool high_priority) {
  if (!device.is_cuda()) return {};
  XY_CUDA(cudaSetDevice(device.index));
  int least = 0, greatest = 0;
  XY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t s;
  XY_CUDA(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, high_priority ? greatest : least));
  return {s, device};
}
void Stream::synchronize() const {
  if (handle_) XY_CUDA(cudaStreamSynchronize(handle_));
}

namespace {

// Events that nobody holds, of one device and kind. Making one costs microseconds, and a collective takes three. One
// that is recorded anew forgets what it marked; what waits for it has its mark already.
class EventPool {
 public:
  static std::shared_ptr<CUevent_st> take(int device, bool timing) {
    static std::mutex mutex;
    static auto& pools = *new std::map<std::pair<int, bool>, EventPool>;  // events go home until the process ends
    EventPool* pool;
    {
      std::lock_guard lock(mutex);
      pool = &pools[{device, timing}];
    }
    return {pool->get(device, timing), [pool](cudaEvent_t free) {
              std::lock_guard lock(pool->mutex_);
              pool->free_.push_back(free);
            }};
  }
  static std::atomic<int64_t>& made() {
    static std::atomic<int64_t> count{0};
    return count;
  }

 private:
  cudaEvent_t get(int device, bool timing) {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        cudaEvent_t e = free_.back();
        free_.pop_back();
        return e;
      }
    }
    detail::DeviceGuard guard(Device::cuda(device));  // an event belongs to the device it was made on
    cudaEvent_t e;
    XY_CUDA(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming));
    ++made();
    return e;
  }
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

}  // namespace

int64_t cuda::events_made() { return EventPool::made(); }
Event::Event(bool timing) : timing_(timing) {}
void Event::record(Stream stream) {
  if (!stream.handle()) return;
  if (!handle_) handle_ = EventPool::take(stream.device().index, timing_);
  XY_CUDA(cudaEventRecord(handle_.get(), stream.handle()));
}
void Event::wait(Stream stream) const {
  if (handle_ && stream.handle()) XY_CUDA(cudaStreamWaitEvent(stream.handle(), handle_.get(), 0));
}
void Event::synchronize() const {
  if (handle_) XY_CUDA(cudaEventSynchronize(handle_.get()));
}
bool Event::done() const {
  if (!handle_) return true;
  cudaError_t status = cudaEventQuery(handle_.get());
  if (status == cudaErrorNotReady) return false;
  XY_CUDA(status);
  return true;
}
float Event::elapsed_ms(const Event& start) const {
  XY_CHECK(handle_ && start.handle_, "elapsed_ms: both events must have been recorded");
  float ms = 0;
  XY_CUDA(cudaEventElapsedTime(&ms, start.handle_.get(), handle_.get()));
  return ms;
}

namespace {
thread_local Stream current[16];
}
Stream current_stream(Device device) {
  if (!device.is_cuda()) return {};
  XY_CHECK(device.index < 16, "device ", device, " is beyond the 16 that Xylem handles");
  Stream& s = current[device.index];
  if (!s.handle()) {
    static Stream defaults[16];  // one for all threads, so that work of helper threads stays ordered with it
    static std::once_flag made[16];
    std::call_once(made[device.index], [&] { defaults[device.index] = Stream::create(device); });
    s = defaults[device.index];
  }
  return s;
}
StreamScope::StreamScope(Stream stream) {
  if (!stream.handle()) return;
  previous_ = current_stream(stream.device());
  current[stream.device().index] = stream;
}
StreamScope::~StreamScope() {
  if (previous_.handle()) current[previous_.device().index] = previous_;
}
void synchronize(Device device) {
  if (!device.is_cuda()) return;
  XY_CUDA(cudaSetDevice(device.index));
  XY_CUDA(cudaDeviceSynchronize());
}

#else  // a CPU build: streams are empty and events always done

int cuda_device_count() { return 0; }
Stream Stream::create(Device, bool) { return {}; }
void Stream::synchronize() const {}
Event::Event(bool timing) : timing_(timing) {}
void Event::record(Stream) {}
void Event::wait(Stream) const {}
void Event::synchronize() const {}
bool Event::done() const { return true; }
float Event::elapsed_ms(const Event& start) const {
  XY_CHECK(timing_ && start.timing_, "elapsed_ms: both events must have been made with timing = true");
  return 0;
}
Stream current_stream(Device) { return {}; }
StreamScope::StreamScope(Stream) {}
StreamScope::~StreamScope() {}
void synchronize(Device) {}

#endif

}  // namespace xylem
