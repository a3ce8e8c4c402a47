// SPDX-License-Identifier: Apache-2.0
#include "core/device/kernel.cuh"
#include "ops/random/random.h"

namespace xylem::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void uniform_kernel(T* out, int64_t n, RngKey key, double low, double high) {
  using A = acc_t<T>;
  int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t block = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; block * 4 < n; block += step) {
    Philox4 r = key(uint64_t(block));
    for (int k = 0; k < 4 && block * 4 + k < n; ++k)
      out[block * 4 + k] = T(affine(A(low), A(high - low), uniform_as<T>(r.v[k])));
  }
}

template <class T>
__global__ void normal_kernel(T* out, int64_t n, RngKey key, double mean, double stddev) {
  int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t block = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; block * 4 < n; block += step) {
    Philox4 r = key(uint64_t(block));
    NormalPair a = normal_pair(r.v[0], r.v[1]), b = normal_pair(r.v[2], r.v[3]);
    const double v[4] = {a.first, a.second, b.first, b.second};
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (block * 4 + k < n) out[block * 4 + k] = T(acc_t<T>(affine(mean, stddev, v[k])));
  }
}

template <class T>
__global__ void dropout_kernel(const T* in, T* out, int64_t n, RngKey key, float keep, double scale) {
  using A = acc_t<T>;
  int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t block = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; block * 4 < n; block += step) {
    Philox4 r = key(uint64_t(block));
    for (int k = 0; k < 4 && block * 4 + k < n; ++k) {
      int64_t i = block * 4 + k;
      out[i] = T(uniform01(r.v[k]) < keep ? A(in[i]) * A(scale) : A(0));
    }
  }
}

}  // namespace

void uniform(const Tensor& t, RngKey key, double low, double high) {
  int64_t n = t.numel();
  visit_float(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    uniform_kernel<<<grid_for((n + 3) / 4, kThreads, t.device()), kThreads, 0, cuda_stream(t.device())>>>(
        t.data<T>(), n, key, low, high);
  });
  XY_CUDA(cudaGetLastError());
}
void normal(const Tensor& t, RngKey key, double mean, double stddev) {
  int64_t n = t.numel();
  visit_float(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    normal_kernel<<<grid_for((n + 3) / 4, kThreads, t.device()), kThreads, 0, cuda_stream(t.device())>>>(
        t.data<T>(), n, key, mean, stddev);
  });
  XY_CUDA(cudaGetLastError());
}
void dropout(const Tensor& x, const Tensor& y, RngKey key, double p) {
  int64_t n = x.numel();
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    dropout_kernel<<<grid_for((n + 3) / 4, kThreads, x.device()), kThreads, 0, cuda_stream(x.device())>>>(
        x.data<T>(), y.data<T>(), n, key, float(1 - p), 1 / (1 - p));
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
