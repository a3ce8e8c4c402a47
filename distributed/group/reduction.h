// SPDX-License-Identifier: Apache-2.0
// Elementwise reduction on the host. Sums of 16-bit floats are kept in f32 until the last addend is in.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/tensor/dtype.h"
#include "distributed/group/group.h"

namespace xylem {

class HostReduction {
 public:
  HostReduction(DType dtype, ReduceOp op, int ranks);
  size_t size() const { return size_; }       // of an element
  size_t wide_size() const { return wide_; }  // of an element of a partial result
  void widen(void* sum, const void* x, int64_t n) const { widen_(sum, x, n); }
  void combine(void* sum, const void* x, int64_t n) const { combine_(sum, x, n); }  // sum = sum op x
  void finish(void* out, const void* sum, int64_t n) const { finish_(out, sum, n, divisor_); }
  // out = x[0] op x[1] op ..., in this order.
  void all(void* out, const char* const* x, int count, int64_t n) const;

 private:
  size_t size_, wide_;
  double divisor_;
  void (*widen_)(void*, const void*, int64_t);
  void (*combine_)(void*, const void*, int64_t);
  void (*finish_)(void*, const void*, int64_t, double);
};

}  // namespace xylem
