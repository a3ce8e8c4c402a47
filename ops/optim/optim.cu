// SPDX-License-Identifier: Apache-2.0
#include "ops/optim/each.cuh"
#include "ops/optim/optim.h"

namespace xylem::cuda {
namespace {

template <class T>
struct Ema {
  T* average;
  const T* value;
  acc_t<T> keep, take;

  template <int V>
  __device__ void at(int64_t i) {
    using A = acc_t<T>;
    Vec<T, V> a = load<V>(average + i), x = load<V>(value + i);
#pragma unroll
    for (int k = 0; k < V; ++k) a.v[k] = T(keep * A(a.v[k]) + take * A(x.v[k]));
    store<V>(average + i, a);
  }
};

template <class T, int V>
__global__ void __launch_bounds__(kBlock) ema_kernel(Ema<T> e, int64_t n) {
  each<V>(n, e);
}

template <class T>
struct Squares {
  const T* x;
  double sum = 0;

  template <int V>
  __device__ void at(int64_t i) {
    using A = acc_t<T>;
    Vec<T, V> p = load<V>(x + i);
    A s = 0;
#pragma unroll
    for (int k = 0; k < V; ++k) s += A(p.v[k]) * A(p.v[k]);
    sum += double(s);
  }
};

template <class T, int V>
__global__ void __launch_bounds__(kBlock) squares_kernel(const T* x, int64_t n, double* partial) {
  __shared__ double shared[kWarp + 1];
  Squares<T> squares{x};
  each<V>(n, squares);
  const double sum = block_sum(squares.sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(1024) total_kernel(const double* partial, int64_t parts, double* result) {
  __shared__ double shared[kWarp + 1];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *result = sum;
}

}  // namespace

void sum_of_squares(const Tensors& tensors, const Tensor& result) {
  const Device device = result.device();
  auto blocks_of = [&](const Tensor& t) {
    return t.numel() == 0 ? 0 : grid_for((t.nbytes() + 15) / 16, kBlock, device, 4);
  };
  int64_t parts = 0;
  for (const Tensor& t : tensors) parts += blocks_of(t);
  Tensor partial = empty({parts}, f64, device);
  double* at = pointer<double>(partial);
  for (const Tensor& t : tensors) {
    const int blocks = blocks_of(t);
    if (blocks == 0) continue;
    visit_float(t.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      constexpr int V = 16 / sizeof(T);
      const T* x = pointer<T>(t);
      if (aligned16(x))
        squares_kernel<T, V><<<blocks, kBlock, 0, cuda_stream(device)>>>(x, t.numel(), at);
      else
        squares_kernel<T, 1><<<blocks, kBlock, 0, cuda_stream(device)>>>(x, t.numel(), at);
    });
    XY_CUDA(cudaGetLastError());
    at += blocks;
  }
  total_kernel<<<1, 1024, 0, cuda_stream(device)>>>(pointer<double>(partial), parts, pointer<double>(result));
  XY_CUDA(cudaGetLastError());
}

void ema(const Tensor& average, const Tensor& value, double decay) {
  const Device device = average.device();
  visit_float(average.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    constexpr int V = 16 / sizeof(T);
    Ema<T> e{pointer<T>(average), pointer<T>(value), A(decay), A(1 - decay)};
    const int64_t n = average.numel();
    const int blocks = grid_for((n + V - 1) / V, kBlock, device);
    if (all_aligned16(e.average, e.value))
      ema_kernel<T, V><<<blocks, kBlock, 0, cuda_stream(device)>>>(e, n);
    else
      ema_kernel<T, 1><<<blocks, kBlock, 0, cuda_stream(device)>>>(e, n);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
