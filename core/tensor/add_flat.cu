// SPDX-License-Identifier: Apache-2.0
#include "core/device/kernel.cuh"
#include "core/tensor/add_flat.h"

namespace xylem::cuda {
namespace {

constexpr int kBlock = 256;

template <class T>
__device__ T plus(T a, T b) {
  return T(acc_t<T>(a) + acc_t<T>(b));
}

// `packs` 16-byte pieces, then what is left one by one. dst may be a or b: each thread reads before it writes.
template <class T>
__global__ void __launch_bounds__(kBlock) add_kernel(T* dst, const T* a, const T* b, int64_t n, int64_t packs) {
  using P = Pack<T>;
  const int64_t step = int64_t(gridDim.x) * kBlock, thread = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  for (int64_t i = thread; i < packs; i += step) {
    P x = P::load_streaming(a + i * P::size), y = P::load_streaming(b + i * P::size);
#pragma unroll
    for (int j = 0; j < P::size; ++j) x.v[j] = plus(x.v[j], y.v[j]);
    x.store(dst + i * P::size);
  }
  for (int64_t i = packs * P::size + thread; i < n; i += step) dst[i] = plus(a[i], b[i]);
}

}  // namespace

void add_flat(const Tensor& dst, const Tensor& a, const Tensor& b) {
  visit_float(dst.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = static_cast<T*>(dst.raw());
    const T *left = static_cast<const T*>(a.raw()), *right = static_cast<const T*>(b.raw());
    const int64_t n = dst.numel();
    const bool wide = aligned16(out) && aligned16(left) && aligned16(right);
    const int64_t packs = wide ? n / Pack<T>::size : 0;
    static const int resident = resident_blocks(add_kernel<T>, kBlock);
    const int grid = grid_for(wide ? packs : n, kBlock, dst.device(), resident);
    add_kernel<T><<<grid, kBlock, 0, cuda_stream(dst.device())>>>(out, left, right, n, packs);
    XY_CUDA(cudaGetLastError());
  });
}

}  // namespace xylem::cuda
