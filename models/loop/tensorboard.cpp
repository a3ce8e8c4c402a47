// SPDX-License-Identifier: Apache-2.0
#include "models/loop/tensorboard.h"

#include <unistd.h>

#include <bit>
#include <chrono>
#include <filesystem>

#include "core/util/check.h"
#include "core/util/crc32c.h"
#include "core/util/file_error.h"

namespace xylem {
namespace {

// The few protobuf encodings that tensorflow.Event needs.
std::string varint(uint64_t v) {
  std::string out;
  for (; v >= 0x80; v >>= 7) out += char(v | 0x80);
  return out + char(v);
}
template <class T>
std::string fixed(T v) {
  return std::string(reinterpret_cast<const char*>(&v), sizeof v);  // little-endian
}
std::string integer(int field, uint64_t v) { return varint(uint64_t(field) << 3) + varint(v); }
std::string real(int field, double v) { return varint(uint64_t(field) << 3 | 1) + fixed(v); }
std::string real32(int field, float v) { return varint(uint64_t(field) << 3 | 5) + fixed(v); }
std::string bytes(int field, const std::string& v) { return varint(uint64_t(field) << 3 | 2) + varint(v.size()) + v; }

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// event.proto: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(int64_t step, const std::string& what) { return real(1, now()) + integer(2, uint64_t(step)) + what; }

std::string masked_crc(const std::string& s) {
  uint32_t crc = crc32c(s.data(), s.size());
  return fixed(std::rotr(crc, 15) + 0xa282ead8u);
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder, int64_t first_step) {
  std::filesystem::create_directories(folder);
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  path_ = folder + "/events.out.tfevents." + std::to_string(int64_t(now() * 1e6)) + "." + host;
  file_.open(path_, std::ios::binary);
  if (!file_) cannot_write(path_);
  write(event(0, bytes(3, "brain.Event:2")));
  write(event(first_step, bytes(7, integer(1, 1))));  // SessionLog.START
}

void TensorBoard::scalar(const std::string& tag, double value, int64_t step) {
  write(event(step, bytes(5, bytes(1, bytes(1, tag) + real32(2, float(value))))));
}

void TensorBoard::flush() {
  if (!file_.flush()) cannot_write(path_);
}

void TensorBoard::write(const std::string& event) {
  std::string length = fixed(uint64_t(event.size()));
  file_ << length << masked_crc(length) << event << masked_crc(event);
}

}  // namespace xylem
