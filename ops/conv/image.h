// SPDX-License-Identifier: Apache-2.0
// A batch of images as kernels see it: a pointer and four strides.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

template <class T>
struct ImageView {
  T* data;
  int64_t n, c, h, w;  // strides
  explicit ImageView(const Tensor& t)
      : data(static_cast<T*>(t.raw())), n(t.stride(0)), c(t.stride(1)), h(t.stride(2)), w(t.stride(3)) {}
  XY_HD T* at(int64_t image, int64_t channel) const { return data + image * n + channel * c; }
};

}  // namespace xylem
