// SPDX-License-Identifier: Apache-2.0
// What one program has found out and the next need not find out again: small tables in the user's cache folder.
#pragma once
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace xylem {

// $XY_CACHE_DIR, else $XDG_CACHE_HOME/xylem, else ~/.cache/xylem.
std::filesystem::path cache_folder();

// A table of one-line texts in a file of cache_folder(), shared by all processes that use the same folder. Nothing here
// throws: a file that is damaged or cannot be written is told once on standard error, and the program does without it.
class CacheFile {
 public:
  explicit CacheFile(const std::string& name);  // of the file

  std::optional<std::string> find(const std::string& key);
  // Keeps a value, unless another process has kept one meanwhile. Returns the one that counts from now on.
  std::string keep(const std::string& key, const std::string& value);

 private:
  using Table = std::map<std::string, std::string>;
  Table read() const;
  void write(const Table& table) const;

  std::filesystem::path file_;
  std::mutex mutex_;
  std::optional<Table> table_;  // as far as this process has read it
};

}  // namespace xylem
