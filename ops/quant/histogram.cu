// SPDX-License-Identifier: Apache-2.0
// Each block counts in shared memory where the bins fit there. Integer atomics: the order does not show.
#include "core/device/kernel.cuh"
#include "ops/quant/histogram.h"

namespace xylem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSharedBins = 8192;  // 32 KiB, which every GPU grants without asking

using Count = unsigned long long;

template <class T, class A>
__global__ void __launch_bounds__(kThreads) count_on_chip(const T* x, int64_t n, A per_bin, Count* counts, int bins) {
  extern __shared__ unsigned local[];
  for (int b = threadIdx.x; b < bins; b += kThreads) local[b] = 0;
  __syncthreads();
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += int64_t(gridDim.x) * kThreads) {
    int64_t bin = bin_of(A(x[i]), per_bin, bins);
    if (bin >= 0) atomicAdd(&local[bin], 1u);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < bins; b += kThreads)
    if (local[b] > 0) atomicAdd(&counts[b], Count(local[b]));
}

template <class T, class A>
__global__ void __launch_bounds__(kThreads) count(const T* x, int64_t n, A per_bin, Count* counts, int64_t bins) {
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += int64_t(gridDim.x) * kThreads) {
    int64_t bin = bin_of(A(x[i]), per_bin, bins);
    if (bin >= 0) atomicAdd(&counts[bin], Count(1));
  }
}

}  // namespace

void abs_histogram(const Tensor& x, double per_bin, const Tensor& counts) {
  const int64_t n = x.numel(), bins = counts.numel();
  auto* out = reinterpret_cast<Count*>(counts.data<int64_t>());
  const int grid = grid_for(n, kThreads, x.device(), 4);
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    if (bins <= kSharedBins)
      count_on_chip<T, A><<<grid, kThreads, size_t(bins) * sizeof(unsigned), cuda_stream(x.device())>>>(
          x.data<T>(), n, A(per_bin), out, int(bins));
    else
      count<T, A><<<grid, kThreads, 0, cuda_stream(x.device())>>>(x.data<T>(), n, A(per_bin), out, bins);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
