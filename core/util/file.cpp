// SPDX-License-Identifier: Apache-2.0
#include "core/util/file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/util/check.h"
#include "core/util/file_error.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;

// All bytes, or none and errno.
std::optional<std::string> bytes_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    errno = EISDIR;
    return {};
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return {};
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) return {};
  return bytes;
}

}  // namespace

std::string read_file(const std::string& path) {
  std::optional<std::string> bytes = bytes_of(path);
  XY_CHECK(bytes, "cannot read '", path, "': ", std::strerror(errno));
  return std::move(*bytes);
}

std::optional<std::string> read_file_if_any(const std::string& path) { return bytes_of(path); }

void replace_file(const std::string& path, std::string_view bytes) {
  replace_file(path, std::initializer_list<std::string_view>{bytes});
}

void replace_file(const std::string& path, std::initializer_list<std::string_view> parts) {
  const fs::path aside = path + ".part" + std::to_string(::getpid());
  std::error_code failed;
  if (fs::path folder = fs::path(path).parent_path(); !folder.empty()) fs::create_directories(folder, failed);
  if (failed) cannot_write(path, failed.value());
  errno = 0;
  std::ofstream out(aside, std::ios::binary | std::ios::trunc);
  for (std::string_view part : parts) out.write(part.data(), std::streamsize(part.size()));
  out.close();
  int reason = errno;
  if (out) {
    fs::rename(aside, path, failed);
    if (!failed) return;
    reason = failed.value();
  }
  fs::remove(aside, failed);
  cannot_write(path, reason != 0 ? reason : EIO);
}

bool try_replace_file(const std::string& path, std::string_view bytes) noexcept {
  try {
    replace_file(path, bytes);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace xylem
