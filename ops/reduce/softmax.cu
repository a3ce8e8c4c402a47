// SPDX-License-Identifier: Apache-2.0
// A warp per row up to 1024 elements, a block beyond. Maximum and sum come from one pass over the row.
#include "core/device/kernel.cuh"
#include "ops/reduce/reduce.h"

namespace xylem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpRow = 1024;

template <class A>
__device__ A exp_of(A v) {
  if constexpr (std::is_same_v<A, double>)
    return exp(v);
  else
    return __expf(v);
}
template <class A>
__device__ A log_of(A v) {
  if constexpr (std::is_same_v<A, double>)
    return log(v);
  else
    return logf(v);
}

// max and sum(exp(x - max)) of a part of a row.
template <class A>
struct Running {
  A top = -INFINITY, total = 0;
  __device__ void add(A v) {
    if (v > top) {
      total *= exp_of(top - v);
      top = v;
    }
    if (v > A(-INFINITY))
      total += exp_of(v - top);
    else if (v != v)
      total = v;
  }
  __device__ void join(const Running& o) {
    if (o.top > top) {
      total = total * exp_of(top - o.top) + o.total;
      top = o.top;
    } else if (o.top > A(-INFINITY)) {
      total += o.total * exp_of(o.top - top);
    } else {
      total += o.total;
    }
  }
};

template <class A, int kLanes>
__device__ Running<A> join_lanes(Running<A> r) {
  for (int d = kWarp / 2; d > 0; d /= 2) {
    Running<A> o{__shfl_xor_sync(0xffffffffu, r.top, d), __shfl_xor_sync(0xffffffffu, r.total, d)};
    // Both partners must join in the same order, or the two halves of the warp would differ in the last bit.
    if (threadIdx.x & d) {
      o.join(r);
      r = o;
    } else {
      r.join(o);
    }
  }
  if constexpr (kLanes > kWarp) {
    __shared__ Running<A> parts[kLanes / kWarp];
    __syncthreads();
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = r;
    __syncthreads();
    r = parts[0];
    for (int w = 1; w < kLanes / kWarp; ++w) r.join(parts[w]);
  }
  return r;
}

// kLanes threads per row: a warp or the whole block.
template <class T, class A, int kLanes>
__global__ void __launch_bounds__(kThreads) forward(const T* x, T* y, int64_t rows, int64_t n, bool log) {
  constexpr int kPerBlock = kThreads / kLanes;
  int lane = threadIdx.x % kLanes;
  for (int64_t row = int64_t(blockIdx.x) * kPerBlock + threadIdx.x / kLanes; row < rows;
       row += int64_t(gridDim.x) * kPerBlock) {
    const T* in = x + row * n;
    Running<A> r;
    for (int64_t i = lane; i < n; i += kLanes) r.add(A(in[i]));
    r = join_lanes<A, kLanes>(r);
    if (log) {
      A shift = r.top + log_of(r.total);
      for (int64_t i = lane; i < n; i += kLanes) y[row * n + i] = T(A(in[i]) - shift);
    } else {
      A scale = A(1) / r.total;
      for (int64_t i = lane; i < n; i += kLanes) y[row * n + i] = T(exp_of(A(in[i]) - r.top) * scale);
    }
  }
}

template <class T, class A, int kLanes>
__global__ void __launch_bounds__(kThreads)
    backward(const T* dy, const T* y, T* dx, int64_t rows, int64_t n, bool log) {
  constexpr int kPerBlock = kThreads / kLanes;
  __shared__ A shared[kWarp + 1];
  int lane = threadIdx.x % kLanes;
  for (int64_t row = int64_t(blockIdx.x) * kPerBlock + threadIdx.x / kLanes; row < rows;
       row += int64_t(gridDim.x) * kPerBlock) {
    const T *g = dy + row * n, *out = y + row * n;
    A total = 0;
    for (int64_t i = lane; i < n; i += kLanes) total += log ? A(g[i]) : A(g[i]) * A(out[i]);
    if constexpr (kLanes == kWarp)
      total = warp_sum(total);
    else
      total = block_sum(total, shared);
    for (int64_t i = lane; i < n; i += kLanes)
      dx[row * n + i] = T(log ? A(g[i]) - exp_of(A(out[i])) * total : A(out[i]) * (A(g[i]) - total));
  }
}

int blocks_for(int64_t rows, int64_t n, Device device) {
  return grid_for(n <= kWarpRow ? rows * kWarp : rows * kThreads, kThreads, device, 16);
}

}  // namespace

void softmax(const Tensor& x, const Tensor& y, bool log) {
  int64_t n = x.size(-1), rows = x.numel() / n;
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    auto* kernel = n <= kWarpRow ? forward<T, A, kWarp> : forward<T, A, kThreads>;
    kernel<<<blocks_for(rows, n, x.device()), kThreads, 0, cuda_stream(x.device())>>>(x.data<T>(), y.data<T>(), rows, n,
                                                                                      log);
  });
  XY_CUDA(cudaGetLastError());
}

void softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool log) {
  int64_t n = y.size(-1), rows = y.numel() / n;
  visit_float(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    auto* kernel = n <= kWarpRow ? backward<T, A, kWarp> : backward<T, A, kThreads>;
    kernel<<<blocks_for(rows, n, y.device()), kThreads, 0, cuda_stream(y.device())>>>(dy.data<T>(), y.data<T>(),
                                                                                      dx.data<T>(), rows, n, log);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
