// SPDX-License-Identifier: Apache-2.0
// Batch norm in two deterministic stages: sums per (part of the data, channel), then per channel. Two memory orders:
// planes [outer, channels, inner] and rows [outer, channels] with the channels innermost.
#include "ops/norm/moments.cuh"
#include "ops/norm/norm.h"

namespace xylem::cuda {
namespace {

constexpr int kBlock = 256;
template <int N>
using Int = std::integral_constant<int, N>;

// What the second pass over the data needs for a channel.
template <class A>
struct Coefficients {
  A mean, scale, shift;  // y = (x - mean) * scale + shift
  A constant, slope;     // dx = scale * (dy - constant - (x - mean) * slope)
};

// ---- first pass ---------------------------------------------------------------------------------------------------

// A block per (part, channel) walks the channel's values, V at a time.
template <int V, class F>
__device__ void walk_plane(ChannelLayout l, F&& f) {
  const int64_t c = blockIdx.y, inner = l.inner / V, count = l.outer * inner;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t o, k;
    divide(i, inner, o, k);
    f((o * l.channels + c) * l.inner + k * V);
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kBlock) plane_moments(const T* x, ChannelLayout l, Moments<acc_t<T>>* partial) {
  using A = acc_t<T>;
  __shared__ __align__(16) char raw[sizeof(Moments<A>) * (kWarp + 1)];
  Series<A, V> series;
  walk_plane<V>(l, [&](int64_t at) { series.add(load<V>(x + at)); });
  Moments<A> all = block_merge(series.merged(), reinterpret_cast<Moments<A>*>(raw));
  if (threadIdx.x == 0) partial[int64_t(blockIdx.x) * l.channels + blockIdx.y] = all;
}

template <class T, int V>
__global__ void __launch_bounds__(kBlock) plane_sums(const T* x, const T* dy, const acc_t<T>* mean,
                                                     const acc_t<T>* rstd, ChannelLayout l, acc_t<T>* partial) {
  using A = acc_t<T>;
  __shared__ A shared[kWarp + 1];
  const A m = mean[blockIdx.y], s = rstd[blockIdx.y];
  A sum = 0, along = 0;
  walk_plane<V>(l, [&](int64_t at) {
    Vec<T, V> xv = load<V>(x + at), dv = load<V>(dy + at);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum += A(dv.v[i]);
      along += A(dv.v[i]) * (A(xv.v[i]) - m) * s;
    }
  });
  sum = block_sum(sum, shared);
  along = block_sum(along, shared);
  if (threadIdx.x == 0) {
    A* out = partial + 2 * (int64_t(blockIdx.x) * l.channels + blockIdx.y);
    out[0] = sum, out[1] = along;
  }
}

// Rows: blockDim.x threads side by side take V channels each, blockDim.y rows at a time.
template <class T, int V>
__global__ void __launch_bounds__(kBlock) row_moments(const T* x, ChannelLayout l, Moments<acc_t<T>>* partial) {
  using A = acc_t<T>;
  __shared__ A means[kBlock * V], squares[kBlock * V], counts[kBlock];
  const int64_t c = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * V;
  Series<A, V> series;
  if (c < l.channels)
    for (int64_t r = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; r < l.outer; r += int64_t(gridDim.x) * blockDim.y)
      series.add(load<V>(x + r * l.channels + c));
  const int width = blockDim.x * V;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    means[threadIdx.y * width + threadIdx.x * V + i] = series.mean[i];
    squares[threadIdx.y * width + threadIdx.x * V + i] = series.m2[i];
  }
  if (threadIdx.x == 0) counts[threadIdx.y] = series.count;
  __syncthreads();
  for (int k = threadIdx.y * blockDim.x + threadIdx.x; k < width; k += blockDim.x * blockDim.y) {
    const int64_t channel = int64_t(blockIdx.y) * width + k;
    if (channel >= l.channels) continue;
    Moments<A> all;
    for (int y = 0; y < int(blockDim.y); ++y) all.merge(counts[y], means[y * width + k], squares[y * width + k]);
    partial[int64_t(blockIdx.x) * l.channels + channel] = all;
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kBlock)
    row_sums(const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* rstd, ChannelLayout l, acc_t<T>* partial) {
  using A = acc_t<T>;
  __shared__ A sums[kBlock * V], alongs[kBlock * V];
  const int64_t c = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * V;
  A sum[V] = {}, along[V] = {}, m[V], s[V];
  if (c < l.channels) {
#pragma unroll
    for (int i = 0; i < V; ++i) m[i] = mean[c + i], s[i] = rstd[c + i];
    for (int64_t r = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; r < l.outer;
         r += int64_t(gridDim.x) * blockDim.y) {
      Vec<T, V> xv = load<V>(x + r * l.channels + c), dv = load<V>(dy + r * l.channels + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sum[i] += A(dv.v[i]);
        along[i] += A(dv.v[i]) * (A(xv.v[i]) - m[i]) * s[i];
      }
    }
  }
  const int width = blockDim.x * V;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[threadIdx.y * width + threadIdx.x * V + i] = sum[i];
    alongs[threadIdx.y * width + threadIdx.x * V + i] = along[i];
  }
  __syncthreads();
  for (int k = threadIdx.y * blockDim.x + threadIdx.x; k < width; k += blockDim.x * blockDim.y) {
    const int64_t channel = int64_t(blockIdx.y) * width + k;
    if (channel >= l.channels) continue;
    A total = 0, total_along = 0;
    for (int y = 0; y < int(blockDim.y); ++y) total += sums[y * width + k], total_along += alongs[y * width + k];
    A* out = partial + 2 * (int64_t(blockIdx.x) * l.channels + channel);
    out[0] = total, out[1] = total_along;
  }
}

// ---- per channel ----------------------------------------------------------------------------------------------------

template <class A>
struct FinishForward {
  const Moments<A>* partial;
  int64_t parts, channels;
  const A *gain, *bias;
  float *running_mean, *running_var;
  A *mean, *rstd;
  Coefficients<A>* coefficients;
  double momentum, eps;
};

// A warp per channel.
template <class A>
__global__ void __launch_bounds__(kBlock) finish_forward(FinishForward<A> f) {
  const int64_t c = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (c >= f.channels) return;
  double mean, variance, unbiased = 0;
  if (f.partial) {
    Moments<double> all;
    for (int64_t p = lane; p < f.parts; p += kWarp) {
      const Moments<A> m = f.partial[p * f.channels + c];
      all.merge(double(m.count), double(m.mean), double(m.m2));
    }
    all = warp_merge(all);
    mean = all.mean, variance = all.m2 / all.count, unbiased = all.m2 / (all.count - 1);
  } else {
    mean = f.running_mean[c], variance = f.running_var[c];
  }
  if (lane != 0) return;
  if (f.partial && f.running_mean) {
    f.running_mean[c] = float((1 - f.momentum) * f.running_mean[c] + f.momentum * mean);
    f.running_var[c] = float((1 - f.momentum) * f.running_var[c] + f.momentum * unbiased);
  }
  const A rstd = A(1 / sqrt(variance + f.eps));
  f.mean[c] = A(mean);
  f.rstd[c] = rstd;
  f.coefficients[c] = {A(mean), rstd * (f.gain ? f.gain[c] : A(1)), f.bias ? f.bias[c] : A(0), 0, 0};
}

template <class A>
struct FinishBackward {
  const A* partial;
  int64_t parts, channels, per_channel;
  const A *gain, *mean, *rstd;
  A *dgain, *dbias;
  Coefficients<A>* coefficients;
  bool accumulate_gain, accumulate_bias, training;
};

template <class A>
__global__ void __launch_bounds__(kBlock) finish_backward(FinishBackward<A> f) {
  const int64_t c = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (c >= f.channels) return;
  double sum = 0, along = 0;
  for (int64_t p = lane; p < f.parts; p += kWarp) {
    sum += double(f.partial[2 * (p * f.channels + c)]);
    along += double(f.partial[2 * (p * f.channels + c) + 1]);
  }
  sum = warp_sum(sum);
  along = warp_sum(along);
  if (lane != 0) return;
  if (f.dgain) f.dgain[c] = (f.accumulate_gain ? f.dgain[c] : A(0)) + A(along);
  if (f.dbias) f.dbias[c] = (f.accumulate_bias ? f.dbias[c] : A(0)) + A(sum);
  const A s = f.rstd[c];
  Coefficients<A> k{f.mean[c], s * (f.gain ? f.gain[c] : A(1)), 0, 0, 0};
  if (f.training) {
    k.constant = A(sum / double(f.per_channel));
    k.slope = A(along / double(f.per_channel)) * s;
  }
  f.coefficients[c] = k;
}

// ---- second pass: y, or dx when dy is given
// -----------------------------------------------------------------------------

template <class A>
__device__ A applied(const Coefficients<A>& k, A x, A dy, bool backward) {
  const A centred = x - k.mean;
  return backward ? k.scale * (dy - k.constant - centred * k.slope) : centred * k.scale + k.shift;
}

template <class T, int V>
__global__ void __launch_bounds__(kBlock)
    apply_planes(const T* x, const T* dy, T* out, ChannelLayout l, const Coefficients<acc_t<T>>* coefficients) {
  using A = acc_t<T>;
  const int64_t count = l.outer * l.channels * l.inner / V, width = l.inner / V;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t plane, o, k, c;
    divide(i, width, plane, k);
    divide(plane, l.channels, o, c);
    Vec<T, V> xv = load<V>(x + i * V), dv = xv, result;
    if (dy) dv = load<V>(dy + i * V);
    const Coefficients<A> coefficient = coefficients[c];
#pragma unroll
    for (int j = 0; j < V; ++j) result.v[j] = T(applied(coefficient, A(xv.v[j]), A(dv.v[j]), dy != nullptr));
    store<V>(out + i * V, result);
  }
}

// A thread keeps its V channels while it walks the rows.
template <class T, int V>
__global__ void __launch_bounds__(kBlock)
    apply_rows(const T* x, const T* dy, T* out, ChannelLayout l, const Coefficients<acc_t<T>>* coefficients) {
  using A = acc_t<T>;
  const int64_t c = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * V;
  if (c >= l.channels) return;
  Coefficients<A> k[V];
#pragma unroll
  for (int j = 0; j < V; ++j) k[j] = coefficients[c + j];
  for (int64_t r = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; r < l.outer; r += int64_t(gridDim.x) * blockDim.y) {
    const int64_t at = r * l.channels + c;
    Vec<T, V> xv = load<V>(x + at), dv = xv, result;
    if (dy) dv = load<V>(dy + at);
#pragma unroll
    for (int j = 0; j < V; ++j) result.v[j] = T(applied(k[j], A(xv.v[j]), A(dv.v[j]), dy != nullptr));
    store<V>(out + at, result);
  }
}

// Launch shape of a pass: parts of the data and threads.
struct Pass {
  dim3 grid, block;
  int64_t parts() const { return grid.x; }
};
Pass pass_over(ChannelLayout l, int v, bool rows, Device device) {
  const int64_t wanted = 8ll * multiprocessors(device);
  if (!rows) {
    const int64_t values = l.outer * l.inner / v,
                  parts = std::clamp<int64_t>(wanted / l.channels, 1, (values + kBlock - 1) / kBlock);
    return {dim3(unsigned(std::min<int64_t>(parts, 1024)), unsigned(l.channels)), dim3(kBlock)};
  }
  unsigned side = 1;
  while (side < 32 && side * v < l.channels) side *= 2;
  const unsigned down = kBlock / side;
  const int64_t tiles = (l.channels + side * v - 1) / (side * v);
  const int64_t parts = std::clamp<int64_t>(wanted / tiles, 1, std::min<int64_t>(1024, (l.outer + down - 1) / down));
  return {dim3(unsigned(parts), unsigned(tiles)), dim3(side, down)};
}

// Calls f(width, rows?) with the widest access that shape and pointers allow.
template <class T, class F>
void with_width(ChannelLayout l, bool aligned, F&& f) {
  const bool rows = l.inner == 1;
  constexpr int V = 16 / sizeof(T);
  if constexpr (sizeof(T) <= 4) {
    if (aligned && (rows ? l.channels : l.inner) % V == 0)
      return rows ? f(Int<V>{}, std::true_type{}) : f(Int<V>{}, std::false_type{});
  }
  rows ? f(Int<1>{}, std::true_type{}) : f(Int<1>{}, std::false_type{});
}

template <class T, int V, bool kRows>
void apply(const T* x, const T* dy, T* out, ChannelLayout l, const Coefficients<acc_t<T>>* k, Device device) {
  const int64_t count = l.per_channel() * l.channels / V;
  if (count == 0) return;
  if constexpr (kRows) {
    Pass pass = pass_over(l, V, true, device);
    apply_rows<T, V><<<pass.grid, pass.block, 0, cuda_stream(device)>>>(x, dy, out, l, k);
  } else {
    apply_planes<T, V><<<grid_for(count, kBlock, device), kBlock, 0, cuda_stream(device)>>>(x, dy, out, l, k);
  }
}

Tensor scratch(size_t bytes, Device device) { return empty({int64_t(bytes)}, u8, device); }

}  // namespace

void batch_norm(const BatchNorm& n) {
  const ChannelLayout l = n.layout;
  const Device device = n.x.device();
  cudaStream_t stream = cuda_stream(device);
  if (l.channels == 0) return;
  XY_CHECK(l.channels <= 65535 || l.inner == 1, "at most 65535 channels in planes, not ", l.channels);
  visit_float(n.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const T* x = pointer<T>(n.x);
    T* y = pointer<T>(n.y);
    Tensor coefficients = scratch(l.channels * sizeof(Coefficients<A>), device), partial;
    auto* k = static_cast<Coefficients<A>*>(coefficients.raw());
    with_width<T>(l, all_aligned16(x, y), [&](auto width, auto rows) {
      constexpr int V = decltype(width)::value;
      constexpr bool kRows = decltype(rows)::value;
      Pass pass{};
      if (n.training) {
        pass = pass_over(l, V, kRows, device);
        partial = scratch(pass.parts() * l.channels * sizeof(Moments<A>), device);
        auto* p = static_cast<Moments<A>*>(partial.raw());
        if constexpr (kRows)
          row_moments<T, V><<<pass.grid, pass.block, 0, stream>>>(x, l, p);
        else
          plane_moments<T, V><<<pass.grid, pass.block, 0, stream>>>(x, l, p);
        XY_CUDA(cudaGetLastError());
      }
      finish_forward<A><<<unsigned((l.channels + 7) / 8), kBlock, 0, stream>>>(
          {pointer<Moments<A>>(partial), n.training ? pass.parts() : 0, l.channels, pointer<A>(n.gain),
           pointer<A>(n.bias), pointer<float>(n.running_mean), pointer<float>(n.running_var), pointer<A>(n.mean),
           pointer<A>(n.rstd), k, n.momentum, n.eps});
      XY_CUDA(cudaGetLastError());
      apply<T, V, kRows>(x, nullptr, y, l, k, device);
    });
  });
  XY_CUDA(cudaGetLastError());
}

void batch_norm_backward(const BatchNormGrad& n) {
  const ChannelLayout l = n.layout;
  const Device device = n.x.device();
  cudaStream_t stream = cuda_stream(device);
  if (l.channels == 0) return;
  visit_float(n.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const T *x = pointer<T>(n.x), *dy = pointer<T>(n.dy);
    T* dx = pointer<T>(n.dx);
    Tensor coefficients = scratch(l.channels * sizeof(Coefficients<A>), device), partial;
    auto* k = static_cast<Coefficients<A>*>(coefficients.raw());
    with_width<T>(l, all_aligned16(x, dy, dx), [&](auto width, auto rows) {
      constexpr int V = decltype(width)::value;
      constexpr bool kRows = decltype(rows)::value;
      int64_t parts = 0;
      if (n.x.numel() > 0) {
        Pass pass = pass_over(l, V, kRows, device);
        parts = pass.parts();
        partial = scratch(parts * l.channels * 2 * sizeof(A), device);
        A* p = static_cast<A*>(partial.raw());
        const A *mean = pointer<A>(n.mean), *rstd = pointer<A>(n.rstd);
        if constexpr (kRows)
          row_sums<T, V><<<pass.grid, pass.block, 0, stream>>>(x, dy, mean, rstd, l, p);
        else
          plane_sums<T, V><<<pass.grid, pass.block, 0, stream>>>(x, dy, mean, rstd, l, p);
        XY_CUDA(cudaGetLastError());
      }
      finish_backward<A><<<unsigned((l.channels + 7) / 8), kBlock, 0, stream>>>(
          {pointer<A>(partial), parts, l.channels, l.per_channel(), pointer<A>(n.gain), pointer<A>(n.mean),
           pointer<A>(n.rstd), pointer<A>(n.dgain), pointer<A>(n.dbias), k, n.accumulate_gain, n.accumulate_bias,
           n.training});
      XY_CUDA(cudaGetLastError());
      apply<T, V, kRows>(x, dy, dx, l, k, device);
    });
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
