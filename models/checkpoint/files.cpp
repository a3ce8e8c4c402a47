// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "core/util/check.h"
#include "core/util/crc32c.h"
#include "core/util/file_error.h"

namespace xylem::checkpoint {

void Pace::wrote(uint64_t bytes) {
  if (bytes_per_second_ <= 0) return;
  using Seconds = std::chrono::duration<double>;
  due_ = std::max(due_, Clock::now()) +
         std::chrono::duration_cast<Clock::duration>(Seconds(double(bytes) / bytes_per_second_));
  std::this_thread::sleep_until(due_);
}

FileWriter::FileWriter(std::string path, Pace* pace) : path_(std::move(path)), pace_(pace) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail();
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::fail() const { cannot_write(path_); }

void FileWriter::write(const void* data, uint64_t bytes) {
  constexpr uint64_t kBlock = 8 << 20;  // still in the cache when its checksum has been taken
  for (const char* p = static_cast<const char*>(data); bytes > 0;) {
    uint64_t block = std::min(bytes, kBlock);
    sum_.crc = crc32c(p, block, sum_.crc);
    sum_.bytes += block;
    bytes -= block;
    for (const char* end = p + block; p < end;) {
      ssize_t n = ::write(fd_, p, size_t(end - p));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail();
      p += n;
    }
    if (pace_) pace_->wrote(block);
  }
}

FileSum FileWriter::finish() {
  int fd = std::exchange(fd_, -1);
  bool ok = ::fsync(fd) == 0;
  int reason = errno;
  bool closed = ::close(fd) == 0;  // network file systems may report a full disk here
  if (!ok) errno = reason;
  if (!ok || !closed) fail();
  return sum_;
}

FileSum write_text(const std::string& path, const std::string& text) {
  FileWriter file(path);
  file.write(text.data(), text.size());
  return file.finish();
}

std::optional<FileSum> sum_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {};
  FileSum sum;
  std::vector<char> block(1 << 20);
  while (in.read(block.data(), std::streamsize(block.size())), in.gcount() > 0) {
    sum.crc = crc32c(block.data(), size_t(in.gcount()), sum.crc);
    sum.bytes += uint64_t(in.gcount());
  }
  if (in.bad()) return {};
  return sum;
}

void sync_folder(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::string done_text(const FileSums& files) {
  std::ostringstream lines;
  auto line = [&](const std::string& name, const FileSum& s) {
    lines << name << ' ' << std::dec << s.bytes << ' ' << std::hex << s.crc << '\n';
  };
  for (const auto& [name, sum] : files) line(name, sum);
  std::string text = lines.str();
  line("DONE", {text.size(), crc32c(text.data(), text.size())});
  return lines.str();
}

std::optional<FileSums> parse_done(const std::string& text) {
  std::istringstream in(text);
  FileSums files;
  std::string name;
  FileSum sum;
  while (in >> name >> std::dec >> sum.bytes >> std::hex >> sum.crc) files[name] = sum;
  auto own = files.extract("DONE");
  if (own.empty() || done_text(files) != text) return {};
  return files;
}

std::string folder_name(int64_t step) {
  std::string digits = std::to_string(step);
  return "step_" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step_") || name.size() < 13 || name.find_first_not_of("0123456789", 5) != std::string::npos)
    return {};
  return std::stoll(name.substr(5));
}

std::string rank_name(int rank) {
  std::string digits = std::to_string(rank);
  return "rank" + std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0') + digits;
}

}  // namespace xylem::checkpoint
