// SPDX-License-Identifier: Apache-2.0
// Files of checkpoints: written with a checksum on the way, and synced to the disk.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace xylem::checkpoint {

struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C
  bool operator==(const FileSum&) const = default;
};
using FileSums = std::map<std::string, FileSum>;  // by file name

// Keeps several files' writing, together, to a number of bytes a second; 0: as fast as it goes.
class Pace {
 public:
  explicit Pace(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  void wrote(uint64_t bytes);  // sleeps for as long as they should have taken

 private:
  using Clock = std::chrono::steady_clock;
  double bytes_per_second_;
  Clock::time_point due_ = {};
};

// Throws FileError.
class FileWriter {
 public:
  explicit FileWriter(std::string path, Pace* pace = nullptr);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  void write(const void* data, uint64_t bytes);
  FileSum finish();  // on the disk when it returns

 private:
  [[noreturn]] void fail() const;
  std::string path_;
  Pace* pace_;
  int fd_;
  FileSum sum_;
};

FileSum write_text(const std::string& path, const std::string& text);
std::optional<FileSum> sum_file(const std::string& path);  // nothing if it cannot be read
void sync_folder(const std::string& path);

// The DONE file: a line for each file and one for these lines themselves.
std::string done_text(const FileSums& files);
std::optional<FileSums> parse_done(const std::string& text);  // nothing if it is damaged

std::string folder_name(int64_t step);                    // step_00001000
std::optional<int64_t> step_of(const std::string& name);  // nothing for other folders
std::string rank_name(int rank);                          // rank0003

}  // namespace xylem::checkpoint
