// SPDX-License-Identifier: Apache-2.0
// The geometry of a kernel that visits elements in step: one output and its operands brought to a common, merged index
// space.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "core/tensor/tensor.h"

namespace xylem {

inline constexpr int kMaxOperands = 5;

// Operands over one index space, outputs first. Dimension 0 is the slowest; there is always at least one. A stride of 0
// repeats the operand (broadcasting). Passed to kernels by value.
struct StridedPlan {
  int rank = 0, operands = 0;
  int64_t numel = 1;
  int64_t shape[kMaxRank] = {};
  int64_t stride[kMaxOperands][kMaxRank] = {};
  void* data[kMaxOperands] = {};
  bool contiguous() const;  // whether every operand is one run of neighbours, in one order
  // Whether runs of `lanes` neighbours along the last dimension are contiguous or repeated in every operand and start
  // at multiples of `lanes` elements, given item sizes in bytes.
  bool packable(int lanes, const int* item_bytes) const;
};

// operands[0] gives the shape; the others broadcast to it.
StridedPlan plan_strided(std::initializer_list<const Tensor*> operands);

// Calls row(context, at, count) in parallel for runs along the last dimension; at[k] is the offset of operand k.
using StridedRow = void (*)(const void* context, const int64_t* at, int64_t count);
void for_rows(const StridedPlan& plan, StridedRow row, const void* context);
template <class F>
void for_rows(const StridedPlan& plan, const F& row) {
  for_rows(
      plan, [](const void* f, const int64_t* at, int64_t count) { (*static_cast<const F*>(f))(at, count); }, &row);
}

}  // namespace xylem
