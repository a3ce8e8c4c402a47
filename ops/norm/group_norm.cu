// SPDX-License-Identifier: Apache-2.0
// Group norm: a block per (sample, group) reads its values twice, the second time from the cache.
#include "ops/norm/moments.cuh"
#include "ops/norm/norm.h"

namespace xylem::cuda {
namespace {

constexpr int kBlock = 512;

template <class T>
struct ForwardArgs {
  using A = acc_t<T>;
  const T* x;
  T* y;
  const A *gain, *bias;
  A *mean, *rstd;
  int64_t channels, inner, groups;
  A eps;
};
template <class T>
struct BackwardArgs {
  using A = acc_t<T>;
  const T *dy, *x;
  T* dx;
  const A *gain, *mean, *rstd;
  A* sums;  // [2, n, channels]: sums of dy * xhat and of dy over a plane
  int64_t channels, inner, groups;
};

template <class T, int V>
__global__ void __launch_bounds__(kBlock) forward(ForwardArgs<T> a) {
  using A = acc_t<T>;
  __shared__ __align__(16) char raw[sizeof(Moments<A>) * (kWarp + 1)];
  const int64_t per_group = a.channels / a.groups, size = per_group * a.inner, base = blockIdx.x * size;
  Series<A, V> series;
  for (int64_t i = threadIdx.x; i < size / V; i += blockDim.x) series.add(load<V>(a.x + base + i * V));
  const Moments<A> all = block_merge(series.merged(), reinterpret_cast<Moments<A>*>(raw));
  const A mean = all.mean, rstd = 1 / sqrt(all.m2 / all.count + a.eps);
  if (threadIdx.x == 0) a.mean[blockIdx.x] = mean, a.rstd[blockIdx.x] = rstd;
  const int64_t first = blockIdx.x % a.groups * per_group;
  for (int64_t i = threadIdx.x; i < size / V; i += blockDim.x) {
    int64_t k, unused;
    divide(i, a.inner / V, k, unused);
    const A scale = rstd * (a.gain ? a.gain[first + k] : A(1)), shift = a.bias ? a.bias[first + k] : A(0);
    Vec<T, V> x = load<V>(a.x + base + i * V);
#pragma unroll
    for (int j = 0; j < V; ++j) x.v[j] = T((A(x.v[j]) - mean) * scale + shift);
    store<V>(a.y + base + i * V, x);
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kBlock) backward(BackwardArgs<T> a) {
  using A = acc_t<T>;
  __shared__ A shared[kWarp + 1];
  const int64_t per_group = a.channels / a.groups, size = per_group * a.inner, base = blockIdx.x * size;
  const int64_t first = blockIdx.x % a.groups * per_group, planes = int64_t(gridDim.x) * per_group;
  const A mean = a.mean[blockIdx.x], rstd = a.rstd[blockIdx.x];
  // A warp sums a plane at a time.
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  A group_sum = 0, group_along = 0;
  for (int64_t k = warp; k < per_group; k += kBlock / kWarp) {
    A sum = 0, along = 0;
    for (int64_t i = lane; i < a.inner / V; i += kWarp) {
      const int64_t at = base + k * a.inner + i * V;
      Vec<T, V> x = load<V>(a.x + at), dy = load<V>(a.dy + at);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        sum += A(dy.v[j]);
        along += A(dy.v[j]) * (A(x.v[j]) - mean) * rstd;
      }
    }
    sum = warp_sum(sum);
    along = warp_sum(along);
    if (lane != 0) continue;
    const int64_t plane = blockIdx.x * per_group + k;
    a.sums[plane] = along;
    a.sums[planes + plane] = sum;
    const A weight = a.gain ? a.gain[first + k] : A(1);
    group_sum += weight * sum;
    group_along += weight * along;
  }
  const A constant = block_sum(group_sum, shared) / A(size), slope = block_sum(group_along, shared) / A(size) * rstd;
  for (int64_t i = threadIdx.x; i < size / V; i += blockDim.x) {
    int64_t k, unused;
    divide(i, a.inner / V, k, unused);
    const A weight = a.gain ? a.gain[first + k] : A(1);
    Vec<T, V> x = load<V>(a.x + base + i * V), dy = load<V>(a.dy + base + i * V);
#pragma unroll
    for (int j = 0; j < V; ++j) x.v[j] = T(rstd * (weight * A(dy.v[j]) - constant - (A(x.v[j]) - mean) * slope));
    store<V>(a.dx + base + i * V, x);
  }
}

// dgain and dbias: a warp per channel over the samples.
template <class A>
__global__ void reduce_samples(const A* sums, int64_t n, int64_t channels, A* dgain, A* dbias, bool accumulate_gain,
                               bool accumulate_bias) {
  const int64_t c = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (c >= channels) return;
  double gain = 0, bias = 0;
  for (int64_t b = lane; b < n; b += kWarp) {
    gain += double(sums[b * channels + c]);
    bias += double(sums[(n + b) * channels + c]);
  }
  gain = warp_sum(gain);
  bias = warp_sum(bias);
  if (lane != 0) return;
  if (dgain) dgain[c] = (accumulate_gain ? dgain[c] : A(0)) + A(gain);
  if (dbias) dbias[c] = (accumulate_bias ? dbias[c] : A(0)) + A(bias);
}

}  // namespace

void group_norm(const GroupNorm& n) {
  cudaStream_t stream = cuda_stream(n.x.device());
  visit_float(n.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    ForwardArgs<T> a{pointer<T>(n.x),    pointer<T>(n.y),
                     pointer<A>(n.gain), pointer<A>(n.bias),
                     pointer<A>(n.mean), pointer<A>(n.rstd),
                     n.channels,         n.inner,
                     n.groups,           A(n.eps)};
    const unsigned blocks = unsigned(n.n * n.groups);
    constexpr int V = sizeof(T) <= 4 ? 16 / sizeof(T) : 1;
    if (n.inner % V == 0 && all_aligned16(a.x, a.y))
      forward<T, V><<<blocks, kBlock, 0, stream>>>(a);
    else
      forward<T, 1><<<blocks, kBlock, 0, stream>>>(a);
  });
  XY_CUDA(cudaGetLastError());
}

void group_norm_backward(const GroupNormGrad& n) {
  const Device device = n.x.device();
  cudaStream_t stream = cuda_stream(device);
  if (n.x.numel() == 0) {
    if (n.dgain.defined() && !n.accumulate_gain) n.dgain.zero_();
    if (n.dbias.defined() && !n.accumulate_bias) n.dbias.zero_();
    return;
  }
  visit_float(n.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    Tensor sums = empty({2, n.n, n.channels}, n.rstd.dtype(), device);
    BackwardArgs<T> a{pointer<T>(n.dy),
                      pointer<T>(n.x),
                      pointer<T>(n.dx),
                      pointer<A>(n.gain),
                      pointer<A>(n.mean),
                      pointer<A>(n.rstd),
                      pointer<A>(sums),
                      n.channels,
                      n.inner,
                      n.groups};
    const unsigned blocks = unsigned(n.n * n.groups);
    constexpr int V = sizeof(T) <= 4 ? 16 / sizeof(T) : 1;
    if (n.inner % V == 0 && all_aligned16(a.x, a.dy, a.dx))
      backward<T, V><<<blocks, kBlock, 0, stream>>>(a);
    else
      backward<T, 1><<<blocks, kBlock, 0, stream>>>(a);
    XY_CUDA(cudaGetLastError());
    if (n.dgain.defined() || n.dbias.defined())
      reduce_samples<A><<<unsigned((n.channels + 7) / 8), 256, 0, stream>>>(pointer<A>(sums), n.n, n.channels,
                                                                            pointer<A>(n.dgain), pointer<A>(n.dbias),
                                                                            n.accumulate_gain, n.accumulate_bias);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
