// SPDX-License-Identifier: Apache-2.0
// What elementwise operations share beside their kernels.
#pragma once
#include <functional>
#include <initializer_list>

#include "core/autograd/autograd.h"
#include "core/tensor/strided.h"

namespace xylem::pointwise {

// An output of `shape` that takes over the memory order of the first operand that has that shape and is dense, so that
// channels-last tensors stay channels-last and kernels run over flat memory.
Tensor empty_output(const Shape& shape, DType dtype, std::initializer_list<const Tensor*> operands);

// The specification of a one-operand function: samples over usual, odd, single, empty and scalar shapes with values in
// [low, high].
OpSpec& unary_spec(const char* name, std::function<Tensor(const Tensor&)> call, double low, double high);

}  // namespace xylem::pointwise
