// SPDX-License-Identifier: Apache-2.0
#include "core/util/cache_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/util/check.h"
#include "core/util/crc32c.h"
#include "core/util/warn.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;

// One process at a time between reading and writing. Without the lock file (a folder that is read-only, say) nothing is
// locked, and writing will fail too.
class Lock {
 public:
  explicit Lock(const fs::path& file)
      : fd_(::open((file.string() + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);
  }
  ~Lock() {
    if (fd_ >= 0) ::close(fd_);
  }
  Lock(const Lock&) = delete;

 private:
  int fd_;
};

std::string head_of(const std::string& body) {
  return detail::concat("xylem cache 1, crc32c ", crc32c(body.data(), body.size()), "\n");
}

}  // namespace

fs::path cache_folder() {
  auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (std::string own = set("XY_CACHE_DIR"); !own.empty()) return own;
  if (std::string cache = set("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "xylem";
  std::string home = set("HOME");
  return fs::path(home.empty() ? "/tmp" : home) / ".cache" / "xylem";
}

CacheFile::CacheFile(const std::string& name) : file_(cache_folder() / name) {}

// A first line with the checksum of the rest, then a line "key<tab>value" for each entry.
CacheFile::Table CacheFile::read() const {
  std::ifstream in(file_, std::ios::binary);
  if (!in) return {};
  std::string head, line;
  std::getline(in, head);
  std::ostringstream rest;
  rest << in.rdbuf();
  Table table;
  if (head + "\n" != head_of(rest.str())) {
    warn_once(file_.string() + " is damaged and will be made anew");
    return {};
  }
  for (std::istringstream lines(rest.str()); std::getline(lines, line);)
    if (size_t tab = line.find('\t'); tab != std::string::npos) table[line.substr(0, tab)] = line.substr(tab + 1);
  return table;
}

void CacheFile::write(const Table& table) const {
  std::string body;
  for (const auto& [key, value] : table) body += key + "\t" + value + "\n";
  const std::string aside = detail::concat(file_.string(), ".", ::getpid());
  std::error_code error;
  {
    std::ofstream out(aside, std::ios::binary);
    out << head_of(body) << body;
    out.close();
    if (!out) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(aside, file_, error);
  if (!error) return;
  warn_once(
      detail::concat("cannot write '", file_.string(), "' (", error.message(),
                     "): what it would hold is found out again by every program; XY_CACHE_DIR names another folder"));
  fs::remove(aside, error);
}

std::optional<std::string> CacheFile::find(const std::string& key) {
  std::lock_guard guard(mutex_);
  if (!table_) table_ = read();
  auto found = table_->find(key);
  return found == table_->end() ? std::nullopt : std::optional(found->second);
}

std::string CacheFile::keep(const std::string& key, const std::string& value) {
  XY_ASSERT((key + value).find('\n') == std::string::npos && key.find('\t') == std::string::npos);
  std::lock_guard guard(mutex_);
  std::error_code ignored;
  fs::create_directories(file_.parent_path(), ignored);
  Lock lock(file_);
  Table table = read();
  for (auto& [known, kept] : table_.value_or(Table())) table.emplace(known, kept);
  bool added = table.emplace(key, value).second;
  if (added) write(table);
  table_ = std::move(table);
  return (*table_)[key];
}

}  // namespace xylem
