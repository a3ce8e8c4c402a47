// SPDX-License-Identifier: Apache-2.0
// Where a backward kernel puts the gradient of a parameter.
#pragma once
#include "core/autograd/autograd.h"

namespace xylem {

// The gradient goes straight into the leaf's buffer where autograd offers one of the kernel's type, else into a new
// tensor. `out` is undefined when nobody wants the gradient.
struct GradTarget {
  Tensor out;
  bool accumulate = false;
  bool direct = false;

  GradTarget() = default;
  GradTarget(const Wanted& want, int input, const Shape& shape, DType dtype, Device device) {
    if (!want[input]) return;
    if (auto sink = want.sink(input); sink && sink->grad.dtype() == dtype && sink->grad.is_contiguous()) {
      out = sink->grad, accumulate = sink->accumulate, direct = true;
    } else {
      out = empty(shape, dtype, device);
    }
  }
  // What the backward function returns for the input, once the kernel has run.
  Tensor finish(const Wanted& want, int input, DType dtype) const {
    if (!direct) return out.defined() ? out.to(dtype) : out;
    want.wrote(input);
    return {};
  }
};

// The type that statistics and parameters of a computation on `t` are held in.
constexpr DType compute_type(DType t) { return t == f64 ? f64 : f32; }

// The same values, contiguous and without history, in `dtype` if given.
inline Tensor packed(const Tensor& t) { return t.defined() ? t.detach().contiguous() : t; }
inline Tensor packed(const Tensor& t, DType dtype) { return t.defined() ? t.detach().to(dtype).contiguous() : t; }

}  // namespace xylem
