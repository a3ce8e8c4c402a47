// SPDX-License-Identifier: Apache-2.0
// The geometry of an elementwise kernel: one output and its inputs brought to a common, merged index space.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "core/autograd/autograd.h"
#include "core/tensor/tensor.h"

namespace xylem::pointwise {

inline constexpr int kMaxOperands = 5;

// Operands over one index space, outputs first. Dimension 0 is the slowest; there is always at least one. A stride of 0
// repeats the operand (broadcasting). Passed to kernels by value.
struct Plan {
  int rank = 0, operands = 0;
  int64_t numel = 1;
  int64_t shape[kMaxRank] = {};
  int64_t stride[kMaxOperands][kMaxRank] = {};
  void* data[kMaxOperands] = {};
  // Whether runs of `lanes` neighbours along the last dimension are contiguous or repeated in every operand and start
  // at multiples of `lanes` elements, given item sizes in bytes.
  bool packable(int lanes, const int* item_bytes) const;
};

// operands[0] gives the shape; the others broadcast to it.
Plan make_plan(std::initializer_list<const Tensor*> operands);

// An output of `shape` that takes over the memory order of the first operand that has that shape and is dense, so that
// channels-last tensors stay channels-last and kernels run over flat memory.
Tensor empty_output(const Shape& shape, DType dtype, std::initializer_list<const Tensor*> operands);

// Calls row(context, at, count) in parallel for runs along the last dimension; at[k] is the offset of operand k.
using Row = void (*)(const void* context, const int64_t* at, int64_t count);
void for_rows(const Plan& plan, Row row, const void* context);

// The specification of a one-operand function: samples over usual, odd, single, empty and scalar shapes with values in
// [low, high].
OpSpec& unary_spec(const char* name, std::function<Tensor(const Tensor&)> call, double low, double high);

}  // namespace xylem::pointwise
