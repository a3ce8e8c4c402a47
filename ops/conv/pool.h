// SPDX-License-Identifier: Apache-2.0
// Pooling and interpolation: the geometry, shared by host and device, and the kernels.
#pragma once
#include "ops/conv/conv.h"

namespace xylem {

// One axis of a pooling operation: which inputs an output's window covers, and which windows cover an input.
struct PoolAxis {
  int64_t in, out;
  int kernel, stride, padding;
  bool adaptive = false;  // output i covers [floor(i*in/out), ceil((i+1)*in/out))
  XY_HD int64_t begin(int64_t o) const {
    int64_t at = adaptive ? o * in / out : o * stride - padding;
    return at < 0 ? 0 : at;
  }
  XY_HD int64_t end(int64_t o) const {
    int64_t at = adaptive ? ((o + 1) * in + out - 1) / out : o * stride - padding + kernel;
    return at > in ? in : at;
  }
  XY_HD int64_t first(int64_t i) const {
    if (adaptive) return i * out / in;
    return i + padding < kernel ? 0 : (i + padding - kernel) / stride + 1;
  }
  XY_HD int64_t last(int64_t i) const {  // exclusive
    int64_t at = adaptive ? ((i + 1) * out + in - 1) / in : (i + padding) / stride + 1;
    return at > out ? out : at;
  }
  // What the window of output o divides by along this axis.
  XY_HD int64_t divisor(int64_t o, bool count_padding) const {
    return count_padding && !adaptive ? kernel : end(o) - begin(o);
  }
};
struct PoolShape {
  PoolAxis h, w;
  bool count_padding = true;
};

// One axis of an interpolation, as PyTorch defines it: output o lies between inputs low and high.
template <class A>
struct ResampleTap {
  int64_t low, high;
  A high_weight;
};
struct ResampleAxis {
  int64_t in, out;
  bool linear, align_corners;
  template <class A>
  XY_HD A scale() const {
    if (linear && align_corners) return out > 1 ? A(in - 1) / A(out - 1) : A(0);
    return A(in) / A(out);
  }
  template <class A>
  XY_HD ResampleTap<A> tap(int64_t o) const {
    if (!linear) {
      int64_t at = int64_t(float(o) * scale<float>());
      at = at < in ? at : in - 1;
      return {at, at, A(0)};
    }
    A position = align_corners ? A(o) * scale<A>() : (A(o) + A(0.5)) * scale<A>() - A(0.5);
    if (position < A(0)) position = A(0);
    int64_t low = int64_t(position);
    if (low > in - 1) low = in - 1;
    return {low, low < in - 1 ? low + 1 : low, position - A(low)};
  }
  // How much of input i output o takes.
  template <class A>
  XY_HD A weight(int64_t o, int64_t i) const {
    ResampleTap<A> t = tap<A>(o);
    return (t.low == i ? A(1) - t.high_weight : A(0)) + (t.high == i ? t.high_weight : A(0));
  }
  // A range that holds every output with a share of input i.
  XY_HD int64_t first(int64_t i) const {
    double s = scale<double>();
    if (s <= 0) return 0;
    double at = (double(i) - 1) / s - 2;
    return at < 0 ? 0 : int64_t(at);
  }
  XY_HD int64_t last(int64_t i) const {
    double s = scale<double>();
    if (s <= 0) return out;
    double at = (double(i) + 2) / s + 2;
    return at > double(out) ? out : int64_t(at);
  }
};
struct ResampleShape {
  ResampleAxis h, w;
};

// x, y, dy, dx: [N, C, H, W] with any strides; positions (row * W + column of the maximum): i32 with the strides of y.
namespace cpu {
void max_pool(const Tensor& x, const Tensor& y, const Tensor& positions, const PoolShape& s);
void max_pool_backward(const Tensor& dy, const Tensor& positions, const Tensor& dx, const PoolShape& s);
void avg_pool(const Tensor& x, const Tensor& y, const PoolShape& s);
void avg_pool_backward(const Tensor& dy, const Tensor& dx, const PoolShape& s);
void resample(const Tensor& x, const Tensor& y, const ResampleShape& s);
void resample_backward(const Tensor& dy, const Tensor& dx, const ResampleShape& s);
}  // namespace cpu
namespace cuda {
void max_pool(const Tensor& x, const Tensor& y, const Tensor& positions, const PoolShape& s);
void max_pool_backward(const Tensor& dy, const Tensor& positions, const Tensor& dx, const PoolShape& s);
void avg_pool(const Tensor& x, const Tensor& y, const PoolShape& s);
void avg_pool_backward(const Tensor& dy, const Tensor& dx, const PoolShape& s);
void resample(const Tensor& x, const Tensor& y, const ResampleShape& s);
void resample_backward(const Tensor& dy, const Tensor& dx, const ResampleShape& s);
}  // namespace cuda

}  // namespace xylem
