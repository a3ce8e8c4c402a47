// SPDX-License-Identifier: Apache-2.0
// Pooling and interpolation on the GPU: one thread per pixel that is written. Gradients are gathered from the windows
// that cover a pixel, so that no two threads add to one place and the sums have a fixed order.
#include "core/device/kernel.cuh"
#include "ops/conv/image.h"
#include "ops/conv/pool.h"

namespace xylem::cuda {
namespace {

// Threads follow the memory order of the images they write: (n, c) planes of (h, w), or (n, h) rows of (w, c).
struct Walk {
  int64_t outers;
  int channels, height, width;
  bool channels_last;
  explicit Walk(const Tensor& t)
      : outers(t.size(0) * (is_channels_last(t) ? t.size(2) : t.size(1))),
        channels(int(t.size(1))),
        height(int(t.size(2))),
        width(int(t.size(3))),
        channels_last(is_channels_last(t)) {}
  int64_t inners() const { return int64_t(width) * (channels_last ? channels : height); }
};

template <class F>
__global__ void __launch_bounds__(256) walk_kernel(Walk walk, F f) {
  int outer_dim = walk.channels_last ? walk.height : walk.channels,
      inner_dim = walk.channels_last ? walk.channels : walk.width;
  unsigned inners = unsigned(walk.width) * unsigned(walk.channels_last ? walk.channels : walk.height);
  for (int64_t outer = int64_t(blockIdx.y) * blockDim.y + threadIdx.y; outer < walk.outers;
       outer += int64_t(gridDim.y) * blockDim.y) {
    int64_t n = outer / outer_dim;
    int a = int(outer % outer_dim);
    for (unsigned inner = blockIdx.x * blockDim.x + threadIdx.x; inner < inners; inner += gridDim.x * blockDim.x) {
      int b = int(inner / unsigned(inner_dim)), c = int(inner % unsigned(inner_dim));
      if (walk.channels_last)
        f(n, c, a, b);
      else
        f(n, a, b, c);
    }
  }
}

// Calls f(n, c, row, column) on the device for every pixel of t.
template <class F>
void each_pixel(const Tensor& t, const F& f) {
  Walk walk(t);
  XY_CHECK(walk.inners() < int64_t(1) << 31, "an image of ", t.shape(), " is too large");
  unsigned x = 32;
  while (x < 256 && x < walk.inners()) x *= 2;
  unsigned y = 256 / x;
  dim3 grid(unsigned((walk.inners() + x - 1) / x), unsigned(std::min<int64_t>((walk.outers + y - 1) / y, 65535)));
  walk_kernel<<<grid, dim3(x, y), 0, cuda_stream(t.device())>>>(walk, f);
  XY_CUDA(cudaGetLastError());
}

template <class T>
struct MaxPool {
  ImageView<T> x, y;
  ImageView<int32_t> positions;
  PoolShape s;
  __device__ void operator()(int64_t n, int c, int p, int q) const {
    int top = int(s.h.begin(p)), bottom = int(s.h.end(p)), left = int(s.w.begin(q)), right = int(s.w.end(q));
    int best = top * int(s.w.in) + left;
    const T* plane = x.at(n, c);
    acc_t<T> most = plane[top * x.h + left * x.w];
    for (int i = top; i < bottom; ++i)
      for (int j = left; j < right; ++j) {
        acc_t<T> value = plane[i * x.h + j * x.w];
        if (value > most || isnan(value)) most = value, best = i * int(s.w.in) + j;
      }
    y.at(n, c)[p * y.h + q * y.w] = T(most);
    positions.at(n, c)[p * positions.h + q * positions.w] = best;
  }
};

template <class T>
struct MaxPoolBackward {
  ImageView<T> dy, dx;
  ImageView<int32_t> positions;
  PoolShape s;
  __device__ void operator()(int64_t n, int c, int i, int j) const {
    int here = i * int(s.w.in) + j;
    acc_t<T> sum = 0;
    for (int p = int(s.h.first(i)); p < int(s.h.last(i)); ++p)
      for (int q = int(s.w.first(j)); q < int(s.w.last(j)); ++q)
        if (positions.at(n, c)[p * positions.h + q * positions.w] == here)
          sum += acc_t<T>(dy.at(n, c)[p * dy.h + q * dy.w]);
    dx.at(n, c)[i * dx.h + j * dx.w] = T(sum);
  }
};

template <class T>
struct AvgPool {
  ImageView<T> x, y;
  PoolShape s;
  __device__ void operator()(int64_t n, int c, int p, int q) const {
    acc_t<T> sum = 0;
    int bottom = int(s.h.end(p)), left = int(s.w.begin(q)), right = int(s.w.end(q));
    for (int i = int(s.h.begin(p)); i < bottom; ++i)
      for (int j = left; j < right; ++j) sum += acc_t<T>(x.at(n, c)[i * x.h + j * x.w]);
    acc_t<T> count = acc_t<T>(s.h.divisor(p, s.count_padding) * s.w.divisor(q, s.count_padding));
    y.at(n, c)[p * y.h + q * y.w] = T(sum / count);
  }
};

template <class T>
struct AvgPoolBackward {
  ImageView<T> dy, dx;
  PoolShape s;
  __device__ void operator()(int64_t n, int c, int i, int j) const {
    acc_t<T> sum = 0;
    for (int p = int(s.h.first(i)); p < int(s.h.last(i)); ++p)
      for (int q = int(s.w.first(j)); q < int(s.w.last(j)); ++q) {
        acc_t<T> count = acc_t<T>(s.h.divisor(p, s.count_padding) * s.w.divisor(q, s.count_padding));
        sum += acc_t<T>(dy.at(n, c)[p * dy.h + q * dy.w]) / count;
      }
    dx.at(n, c)[i * dx.h + j * dx.w] = T(sum);
  }
};

template <class T>
struct Resample {
  ImageView<T> x, y;
  ResampleShape s;
  __device__ void operator()(int64_t n, int c, int p, int q) const {
    using A = acc_t<T>;
    ResampleTap<A> v = s.h.template tap<A>(p), u = s.w.template tap<A>(q);
    const T *above = x.at(n, c) + v.low * x.h, *below = x.at(n, c) + v.high * x.h;
    A top = (1 - u.high_weight) * A(above[u.low * x.w]) + u.high_weight * A(above[u.high * x.w]);
    A bottom = (1 - u.high_weight) * A(below[u.low * x.w]) + u.high_weight * A(below[u.high * x.w]);
    y.at(n, c)[p * y.h + q * y.w] = T((1 - v.high_weight) * top + v.high_weight * bottom);
  }
};

template <class T>
struct ResampleBackward {
  ImageView<T> dy, dx;
  ResampleShape s;
  __device__ void operator()(int64_t n, int c, int i, int j) const {
    using A = acc_t<T>;
    A sum = 0;
    int q_begin = int(s.w.first(j)), q_end = int(s.w.last(j));
    for (int p = int(s.h.first(i)), end = int(s.h.last(i)); p < end; ++p) {
      A v = s.h.template weight<A>(p, i);
      if (v == A(0)) continue;
      A row = 0;
      for (int q = q_begin; q < q_end; ++q) {
        A u = s.w.template weight<A>(q, j);
        if (u != A(0)) row += u * A(dy.at(n, c)[p * dy.h + q * dy.w]);
      }
      sum += v * row;
    }
    dx.at(n, c)[i * dx.h + j * dx.w] = T(sum);
  }
};

template <class T>
struct ChannelBias {
  ImageView<T> y;
  const T* bias;
  __device__ void operator()(int64_t n, int c, int p, int q) const {
    T& value = y.at(n, c)[p * y.h + q * y.w];
    value = T(acc_t<T>(value) + acc_t<T>(bias[c]));
  }
};

}  // namespace

void max_pool(const Tensor& x, const Tensor& y, const Tensor& positions, const PoolShape& s) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_pixel(y, MaxPool<T>{ImageView<T>(x), ImageView<T>(y), ImageView<int32_t>(positions), s});
  });
}
void max_pool_backward(const Tensor& dy, const Tensor& positions, const Tensor& dx, const PoolShape& s) {
  visit_float(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_pixel(dx, MaxPoolBackward<T>{ImageView<T>(dy), ImageView<T>(dx), ImageView<int32_t>(positions), s});
  });
}
void avg_pool(const Tensor& x, const Tensor& y, const PoolShape& s) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_pixel(y, AvgPool<T>{ImageView<T>(x), ImageView<T>(y), s});
  });
}
void avg_pool_backward(const Tensor& dy, const Tensor& dx, const PoolShape& s) {
  visit_float(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_pixel(dx, AvgPoolBackward<T>{ImageView<T>(dy), ImageView<T>(dx), s});
  });
}
void resample(const Tensor& x, const Tensor& y, const ResampleShape& s) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_pixel(y, Resample<T>{ImageView<T>(x), ImageView<T>(y), s});
  });
}
void resample_backward(const Tensor& dy, const Tensor& dx, const ResampleShape& s) {
  visit_float(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_pixel(dx, ResampleBackward<T>{ImageView<T>(dy), ImageView<T>(dx), s});
  });
}

void add_channel_bias(const Tensor& y, const Tensor& bias) {
  visit_float(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_pixel(y, ChannelBias<T>{ImageView<T>(y), bias.data<T>()});
  });
}

}  // namespace xylem::cuda
