// SPDX-License-Identifier: Apache-2.0
// Building blocks of kernels: 16-byte vectors, warp and block reductions in a fixed order, launch sizes.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/device/cuda.h"

namespace xylem::cuda {

inline constexpr int kWarp = 32;

// Sixteen bytes of T, loaded and stored with one instruction. The address must be 16-byte aligned.
template <class T>
struct alignas(16) Pack {
  static constexpr int size = 16 / sizeof(T);
  T v[size];
  __device__ static Pack load(const T* p) {
    int4 raw = __ldg(reinterpret_cast<const int4*>(p));
    return *reinterpret_cast<Pack*>(&raw);
  }
  // Streaming: data that will not be read again soon leaves the cache first.
  __device__ static Pack load_streaming(const T* p) {
    int4 raw = __ldcs(reinterpret_cast<const int4*>(p));
    return *reinterpret_cast<Pack*>(&raw);
  }
  __device__ void store(T* p) const { *reinterpret_cast<int4*>(p) = *reinterpret_cast<const int4*>(v); }
  __device__ void store_streaming(T* p) const { __stcs(reinterpret_cast<int4*>(p), *reinterpret_cast<const int4*>(v)); }
};

template <class T>
inline bool aligned16(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <class A>
__device__ A warp_sum(A v) {
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}
template <class A>
__device__ A warp_max(A v) {
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) {
    A o = __shfl_xor_sync(0xffffffffu, v, d);
    v = o > v ? o : v;
  }
  return v;
}

// Sum over the block; every thread gets it. blockDim.x must be a multiple of 32. `shared` holds 33 values; successive
// calls may reuse it.
template <class A>
__device__ A block_sum(A v, A* shared) {
  int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  v = warp_sum(v);
  __syncthreads();
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = warp_sum(lane < warps ? shared[lane] : A(0));
    if (lane == 0) shared[kWarp] = v;
  }
  __syncthreads();
  return shared[kWarp];
}
template <class A>
__device__ A block_max(A v, A* shared) {
  int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  v = warp_max(v);
  __syncthreads();
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = warp_max(lane < warps ? shared[lane] : shared[0]);
    if (lane == 0) shared[kWarp] = v;
  }
  __syncthreads();
  return shared[kWarp];
}

// Blocks of `kernel` that a multiprocessor runs at a time: a grid-stride loop over more would end in a part-filled
// wave.
template <class Kernel>
int resident_blocks(Kernel* kernel, int block) {
  int blocks = 0;
  XY_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, 0));
  return std::max(blocks, 1);
}

// Blocks for a grid-stride loop over n items: enough to fill the GPU, never more than needed.
inline int grid_for(int64_t n, int block, Device device, int blocks_per_sm = 8) {
  int64_t wanted = (n + block - 1) / block;
  return int(std::clamp<int64_t>(wanted, 1, int64_t(multiprocessors(device)) * blocks_per_sm));
}

}  // namespace xylem::cuda
