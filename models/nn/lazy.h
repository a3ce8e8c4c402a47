// SPDX-License-Identifier: Apache-2.0
// Tensors whose values are made when something reads them, and forgotten afterwards. A model of such tensors may be
// larger than memory: it is run, traced and exported a weight at a time.
#pragma once
#include <functional>
#include <vector>

#include "core/autograd/autograd.h"
#include "models/nn/module.h"

namespace xylem {

// On the CPU. `make` gives its values, the same ones each time; what is written into the tensor is forgotten too.
Tensor lazy_tensor(const Shape& shape, DType dtype, std::function<Tensor()> make);
// f(source), a tensor of that shape and type: at once where it is small, else as a lazy tensor.
Tensor lazily(const Tensor& source, const Shape& shape, DType dtype, std::function<Tensor(const Tensor&)> f);

// The values that lazy tensors of this thread hold go; pointers to them end here.
void forget_lazy_values();

// They go after every operation while it lives.
class LazyScope {
 public:
  LazyScope() : after_op_(forget_lazy_values) {}

 private:
  AfterOp after_op_;
};

// The module's tensors take the given ones over instead of copying them. Checks and errors are those of
// load_state_dict(); where types differ, the cast is lazy.
void adopt_state_dict(Module& module, const std::vector<NamedTensor>& tensors);

}  // namespace xylem
