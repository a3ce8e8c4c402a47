// SPDX-License-Identifier: Apache-2.0
// HDF5 files, row by row (a row is everything at one index of the first dimension). HDF5 has one global lock, which
// would leave decompression to a single thread; so the library is only asked where a chunk lies, and reading it from
// the file, unpacking it (deflate, shuffle) and copying rows run in parallel. What that does not cover (other filters,
// foreign byte orders, types Xylem lacks) goes through the library, under a lock. Without HDF5 in the build
// every constructor throws.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace xylem {

bool built_with_hdf5();

struct Hdf5Info {
  std::string name;
  Shape shape = {};
  std::optional<DType> dtype =
      {};                    // what rows are read as: the nearest type that holds all values; none for strings etc.
  Shape chunk = {};          // rank 0: not chunked
  std::string filters = {};  // "shuffle, deflate 4", or ""
};

class Hdf5Array;

class Hdf5File {
 public:
  // Throws if the file is missing or is not HDF5.
  explicit Hdf5File(const std::string& path);
  const std::string& path() const;
  std::vector<Hdf5Info> datasets() const;  // at any depth, by name
  // Throws naming what the file does hold if there is no dataset `name`; or why it cannot be read: HDF5's own reason, a
  // filter that is not there, no rows, no numbers.
  Hdf5Array array(const std::string& name, int64_t cache_bytes = int64_t(256) << 20) const;
  std::vector<int64_t> integers(const std::string& name) const;  // a whole [N] dataset
  // A string, or list of strings, that is an attribute of a dataset; empty if it is absent.
  std::vector<std::string> strings(const std::string& name, const std::string& attribute) const;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

// One dataset; all of it may be used from many threads.
class Hdf5Array {
 public:
  const Hdf5Info& info() const;
  int64_t rows() const { return info().shape[0]; }
  size_t row_bytes() const;
  void read_row(int64_t row, void* out) const;
  bool direct() const;              // reads outside HDF5's lock
  int64_t cached_rows() const;      // how many rows the cache of unpacked chunks holds
  int64_t chunks_unpacked() const;  // so far; far more than the file has means that reading order and chunks disagree

  struct Impl;
  explicit Hdf5Array(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

// Writes a file aside and renames it in finish(), so that it is complete or absent.
class Hdf5Writer {
 public:
  explicit Hdf5Writer(const std::string& path);
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  // A dataset [N, row...], N growing with every append(). chunk: {rows} or {rows, part of a row...}; deflate: 0 (off)
  // to 9.
  void create(const std::string& name, const Shape& row, DType dtype, const Shape& chunk, int deflate = 0);
  void append(const std::string& name, const void* rows, int64_t count);
  void set_strings(const std::string& name, const std::string& attribute, const std::vector<std::string>& values);
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace xylem
