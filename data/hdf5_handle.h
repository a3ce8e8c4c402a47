// SPDX-License-Identifier: Apache-2.0
// What the HDF5 sources share.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "core/tensor/dtype.h"

namespace xylem::hdf5 {

// Every call into HDF5 is made under this lock, closing included.
class Lock {
 public:
  Lock();

 private:
  std::lock_guard<std::mutex> guard_;
};

// Owns an HDF5 identifier (hid_t is int64_t, herr_t is int).
class Id {
 public:
  Id() = default;
  Id(int64_t id, int (*close)(int64_t)) : id_(id), close_(close) {}
  Id(Id&& o) noexcept : id_(std::exchange(o.id_, -1)), close_(o.close_) {}
  Id& operator=(Id&& o) noexcept {
    std::swap(id_, o.id_), std::swap(close_, o.close_);
    return *this;
  }
  ~Id() { reset(); }
  void reset() {
    if (id_ >= 0) close_(id_);
    id_ = -1;
  }
  operator int64_t() const { return id_; }

 private:
  int64_t id_ = -1;
  int (*close_)(int64_t) = nullptr;
};

std::string reason();     // " (HDF5: ...)": the innermost message of the error just returned
int64_t native(DType t);  // the type in memory; throws for types that files do not hold

}  // namespace xylem::hdf5
