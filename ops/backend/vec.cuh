// SPDX-License-Identifier: Apache-2.0
// V values of T moved with one instruction; the address must be a multiple of V * sizeof(T), at most 16 bytes.
#pragma once
#include "core/device/kernel.cuh"
#include "core/tensor/tensor.h"

namespace xylem::cuda {

template <class T, int V>
struct alignas(sizeof(T) * V) Vec {
  static_assert(sizeof(T) * V <= 16);
  T v[V];
};

template <int V, class T>
__device__ inline Vec<T, V> load(const T* p) {
  return *reinterpret_cast<const Vec<T, V>*>(p);
}
template <int V, class T>
__device__ inline void store(T* p, const Vec<T, V>& x) {
  *reinterpret_cast<Vec<T, V>*>(p) = x;
}

// V values of A, however many accesses of 16 bytes that takes.
template <int V, class A>
__device__ inline void load_wide(const A* p, A (&out)[V]) {
  constexpr int kChunk = V * sizeof(A) <= 16 ? V : 16 / sizeof(A);
#pragma unroll
  for (int i = 0; i < V; i += kChunk) {
    Vec<A, kChunk> x = load<kChunk>(p + i);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) out[i + k] = x.v[k];
  }
}
template <int V, class A>
__device__ inline void store_wide(A* p, const A (&x)[V]) {
  constexpr int kChunk = V * sizeof(A) <= 16 ? V : 16 / sizeof(A);
#pragma unroll
  for (int i = 0; i < V; i += kChunk) {
    Vec<A, kChunk> y;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) y.v[k] = x[i + k];
    store<kChunk>(p + i, y);
  }
}

// n / d and n % d, in 32 bits whenever the value allows it.
__device__ inline void divide(int64_t n, int64_t d, int64_t& quotient, int64_t& remainder) {
  if (((n | d) >> 32) == 0) {
    quotient = uint32_t(n) / uint32_t(d);
    remainder = uint32_t(n) - uint32_t(quotient) * uint32_t(d);
  } else {
    quotient = n / d;
    remainder = n - quotient * d;
  }
}

// An undefined tensor is a null pointer.
template <class T>
T* pointer(const Tensor& t) {
  return t.defined() ? static_cast<T*>(t.raw()) : nullptr;
}
template <class... Pointers>
bool all_aligned16(const Pointers*... p) {
  return (aligned16(p) && ...);
}

}  // namespace xylem::cuda
