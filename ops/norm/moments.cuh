// SPDX-License-Identifier: Apache-2.0
// Means and squared deviations that can be merged in any shape of tree, without cancellation (Welford, 1962; Chan,
// Golub and LeVeque, 1983).
#pragma once
#include "ops/backend/vec.cuh"

namespace xylem::cuda {

template <class A>
struct Moments {
  A count = 0, mean = 0, m2 = 0;
  __device__ void merge(A n, A m, A s) {
    const A total = count + n;
    if (total == 0) return;
    const A delta = m - mean, share = n / total;
    mean += delta * share;
    m2 += s + delta * delta * count * share;
    count = total;
  }
};

// V interleaved series that grow together.
template <class A, int V>
struct Series {
  A count = 0, mean[V] = {}, m2[V] = {};
  template <class T>
  __device__ void add(const Vec<T, V>& x) {
    count += 1;
    const A inverse = 1 / count;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A value = A(x.v[i]), d = value - mean[i];
      mean[i] += d * inverse;
      m2[i] += d * (value - mean[i]);
    }
  }
  __device__ Moments<A> merged() const {
    Moments<A> all;
#pragma unroll
    for (int i = 0; i < V; ++i) all.merge(count, mean[i], m2[i]);
    return all;
  }
};

// Merged over the warp in a fixed order; lane 0 gets the result.
template <class A>
__device__ Moments<A> warp_merge(Moments<A> v) {
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) {
    const A n = __shfl_down_sync(0xffffffffu, v.count, d), m = __shfl_down_sync(0xffffffffu, v.mean, d),
            s = __shfl_down_sync(0xffffffffu, v.m2, d);
    v.merge(n, m, s);
  }
  return v;
}

// Merged over the block in a fixed order; every thread gets the result. `shared` holds 33 entries.
template <class A>
__device__ Moments<A> block_merge(Moments<A> v, Moments<A>* shared) {
  v = warp_merge(v);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  __syncthreads();
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < int(blockDim.x) / kWarp; ++w) v.merge(shared[w].count, shared[w].mean, shared[w].m2);
    shared[kWarp] = v;
  }
  __syncthreads();
  return shared[kWarp];
}

}  // namespace xylem::cuda
