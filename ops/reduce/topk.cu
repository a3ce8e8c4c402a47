// SPDX-License-Identifier: Apache-2.0
// A block per row. topk finds the best element after the previous one k times: no workspace, no change of the input,
// and fast for the small k of sampling and accuracy.
#include "core/device/kernel.cuh"
#include "ops/reduce/reduce.h"

namespace xylem::cuda {
namespace {

constexpr int kThreads = 256;

template <class A>
struct Candidate {
  A value;
  int64_t index;  // -1: none
  // Order: NaN before numbers, larger values first, then smaller indices.
  __device__ bool before(const Candidate& o) const {
    if (index < 0 || o.index < 0) return index >= 0;
    bool nan = value != value, other = o.value != o.value;
    if (nan != other) return nan;
    return nan || value == o.value ? index < o.index : value > o.value;
  }
};

// The first element of the row that comes after `previous` (any, if previous.index < 0).
template <class T, class A>
__device__ Candidate<A> next(const T* row, int64_t n, Candidate<A> previous) {
  __shared__ Candidate<A> parts[kThreads / kWarp];
  Candidate<A> best{A(0), -1};
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    Candidate<A> c{A(row[i]), i};
    if (previous.index >= 0 && !previous.before(c)) continue;
    if (c.before(best)) best = c;
  }
  for (int d = kWarp / 2; d > 0; d /= 2) {
    Candidate<A> o{A(__shfl_xor_sync(0xffffffffu, best.value, d)), __shfl_xor_sync(0xffffffffu, best.index, d)};
    if (o.before(best)) best = o;
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = best;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w)
    if (parts[w].before(best)) best = parts[w];
  return best;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    select(const T* x, T* values, int64_t* indices, int64_t rows, int64_t n, int64_t k) {
  using A = acc_t<T>;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    Candidate<A> at{A(0), -1};
    for (int64_t i = 0; i < k; ++i) {
      at = next<T, A>(x + r * n, n, at);
      if (threadIdx.x == 0) {
        if (values) values[r * k + i] = x[r * n + at.index];
        indices[r * k + i] = at.index;
      }
    }
  }
}

void launch(const Tensor& x, const Tensor* values, const Tensor& indices) {
  int64_t n = x.size(-1), k = indices.size(-1), rows = indices.numel() / k;
  visit_any(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    select<T><<<grid_for(rows, 1, x.device()), kThreads, 0, cuda_stream(x.device())>>>(
        x.data<T>(), values ? values->data<T>() : nullptr, indices.data<int64_t>(), rows, n, k);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace

void argmax(const Tensor& x, const Tensor& y) { launch(x, nullptr, y); }
void topk(const Tensor& x, const Tensor& values, const Tensor& indices) { launch(x, &values, indices); }

}  // namespace xylem::cuda
