// SPDX-License-Identifier: Apache-2.0
// Devices, streams and events. A process drives at most one GPU at a time; work on it is asynchronous and
// stream-ordered.
#pragma once
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

struct CUstream_st;
struct CUevent_st;

namespace xylem {

struct Device {
  enum class Type : uint8_t { cpu, cuda } type = Type::cpu;
  int8_t index = 0;
  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {Type::cuda, static_cast<int8_t>(index)}; }
  static Device parse(std::string_view text);  // "cpu", "cuda", "cuda:1", or "auto": the first GPU if there is one
  bool is_cuda() const { return type == Type::cuda; }
  bool operator==(const Device&) const = default;
  std::string str() const { return is_cuda() ? "cuda:" + std::to_string(index) : "cpu"; }
};
inline std::ostream& operator<<(std::ostream& out, Device d) { return out << d.str(); }

int cuda_device_count();  // 0 in a CPU build, without a driver or without a GPU; never throws
inline bool cuda_available() { return cuda_device_count() > 0; }
constexpr bool built_with_cuda() {
#ifdef XY_WITH_CUDA
  return true;
#else
  return false;
#endif
}

// A queue of device work. On the CPU every operation is synchronous and a Stream is empty.
class Stream {
 public:
  Stream() = default;
  Stream(CUstream_st* handle, Device device) : handle_(handle), device_(device) {}
  static Stream create(Device device, bool high_priority = false);  // lives until the process ends
  CUstream_st* handle() const { return handle_; }
  Device device() const { return device_; }
  void synchronize() const;
  bool operator==(const Stream&) const = default;

 private:
  CUstream_st* handle_ = nullptr;
  Device device_{};
};

// A point in a stream's work. record() marks it, wait() orders a later stream behind it.
class Event {
 public:
  explicit Event(bool timing = false);
  void record(Stream stream);
  void wait(Stream stream) const;
  void synchronize() const;
  bool done() const;
  float elapsed_ms(const Event& start) const;  // both must have been made with timing = true

 private:
  std::shared_ptr<CUevent_st> handle_;
  bool timing_ = false;
};

Stream current_stream(Device device);
inline CUstream_st* cuda_stream(Device device) { return current_stream(device).handle(); }

// Work inside the scope goes to `stream`. Tensors that cross streams must be ordered with Events.
class StreamScope {
 public:
  explicit StreamScope(Stream stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  Stream previous_;
};

void synchronize(Device device);  // waits for all work of the device

}  // namespace xylem
