// SPDX-License-Identifier: Apache-2.0
// Attention as matrix products and softmax: the reference on the GPU, for every type and size. And the rotary kernels.
#include "ops/attention/attention.h"
#include "ops/backend/vec.cuh"

namespace xylem::cuda {
namespace {

// Rounded before anything is subtracted from it: with a fused multiply-subtract the backward pass would see scores that
// differ from the forward pass's in the last bit, which is a lot where scores are large.
__device__ float scaled(float score, float scale) { return __fmul_rn(score, scale); }
__device__ double scaled(double score, double scale) { return __dmul_rn(score, scale); }

constexpr int kBlock = 256;

// The keys that row r of the scores sees. Rows of several heads follow one another, `queries` each.
__device__ inline int64_t visible(int64_t r, int64_t queries, int64_t keys, bool causal) {
  return causal ? min(keys, r % queries + 1 + keys - queries) : keys;
}

// A block per row.
template <class A>
__global__ void __launch_bounds__(kBlock)
    masked_softmax_kernel(A* scores, A* lse, int64_t queries, int64_t keys, bool causal, A scale) {
  __shared__ A shared[kWarp + 1];
  const int64_t r = blockIdx.x, n = visible(r, queries, keys, causal);
  A* row = scores + r * keys;
  A top = -INFINITY, sum = 0;
  for (int64_t j = threadIdx.x; j < n; j += blockDim.x) top = max(top, scaled(row[j], scale));
  top = block_max(top, shared);
  for (int64_t j = threadIdx.x; j < n; j += blockDim.x) sum += exp(scaled(row[j], scale) - top);
  sum = block_sum(sum, shared);
  const A inverse = 1 / sum;
  for (int64_t j = threadIdx.x; j < keys; j += blockDim.x)
    row[j] = j < n ? exp(scaled(row[j], scale) - top) * inverse : A(0);
  if (threadIdx.x == 0) lse[r] = top + log(sum);
}

template <class A>
__global__ void __launch_bounds__(kBlock)
    probabilities_kernel(A* scores, const A* lse, int64_t total, int64_t queries, int64_t keys, bool causal, A scale) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t r, j;
    divide(i, keys, r, j);
    scores[i] = j < visible(r, queries, keys, causal) ? exp(scaled(scores[i], scale) - lse[r]) : A(0);
  }
}

template <class A>
__global__ void __launch_bounds__(kBlock) softmax_gradient_kernel(const A* p, A* dp, int64_t keys, A scale) {
  __shared__ A shared[kWarp + 1];
  const A* prow = p + blockIdx.x * keys;
  A *drow = dp + blockIdx.x * keys, along = 0;
  for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) along += prow[j] * drow[j];
  along = block_sum(along, shared);
  for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) drow[j] = prow[j] * (drow[j] - along) * scale;
}

// Calls f with the arithmetic type of `t`, f32 or f64.
template <class F>
void visit_compute(const Tensor& t, F&& f) {
  if (t.dtype() == f64)
    f(Tag<double>{});
  else
    f(Tag<float>{});
}

// ---- rotary --------------------------------------------------------------------------------------------------------

// As on the CPU: the frequency rounded to A, then multiplied by the position.
template <class A>
__global__ void rotary_table_kernel(A* table, int64_t positions, int64_t half, double base) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, total = positions * half;
  if (i >= total) return;
  int64_t s, k;
  divide(i, half, s, k);
  const A frequency = A(1 / pow(base, double(2 * k) / double(2 * half)));
  const A angle = A(s) * frequency;
  table[i] = cos(angle);
  table[total + i] = sin(angle);
}

template <class T>
struct RotaryArgs {
  const T* x;
  T* out;
  const acc_t<T>*cosines, *sines;
  int64_t batch, positions, heads, half, stride_b, stride_s, stride_h;
  acc_t<T> sign;
};

// A thread turns V pairs.
template <class T, int V>
__global__ void __launch_bounds__(kBlock) rotary_kernel(RotaryArgs<T> a) {
  using A = acc_t<T>;
  const int64_t width = a.half / V, total = a.batch * a.positions * a.heads * width;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t row, k, place, h, b, s;
    divide(i, width, row, k);
    divide(row, a.heads, place, h);
    divide(place, a.positions, b, s);
    k *= V;
    const T* x = a.x + b * a.stride_b + s * a.stride_s + h * a.stride_h + k;
    T* y = a.out + row * 2 * a.half + k;
    A cosine[V], sine[V];
    load_wide<V>(a.cosines + s * a.half + k, cosine);
    load_wide<V>(a.sines + s * a.half + k, sine);
    Vec<T, V> first = load<V>(x), second = load<V>(x + a.half);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const A u = A(first.v[j]), w = A(second.v[j]), t = a.sign * sine[j];
      first.v[j] = T(u * cosine[j] - w * t);
      second.v[j] = T(w * cosine[j] + u * t);
    }
    store<V>(y, first);
    store<V>(y + a.half, second);
  }
}

}  // namespace

void masked_softmax(const Tensor& scores, const Tensor& lse, int64_t queries, bool causal, double scale) {
  const int64_t keys = scores.size(-1), rows = scores.numel() / keys;
  visit_compute(scores, [&](auto tag) {
    using A = typename decltype(tag)::type;
    masked_softmax_kernel<A><<<unsigned(rows), kBlock, 0, cuda_stream(scores.device())>>>(
        pointer<A>(scores), pointer<A>(lse), queries, keys, causal, A(scale));
  });
  XY_CUDA(cudaGetLastError());
}

void probabilities(const Tensor& scores, const Tensor& lse, int64_t queries, bool causal, double scale) {
  const Device device = scores.device();
  visit_compute(scores, [&](auto tag) {
    using A = typename decltype(tag)::type;
    probabilities_kernel<A><<<grid_for(scores.numel(), kBlock, device), kBlock, 0, cuda_stream(device)>>>(
        pointer<A>(scores), pointer<A>(lse), scores.numel(), queries, scores.size(-1), causal, A(scale));
  });
  XY_CUDA(cudaGetLastError());
}

void softmax_gradient(const Tensor& p, const Tensor& dp, double scale) {
  const int64_t keys = p.size(-1), rows = p.numel() / keys;
  visit_compute(p, [&](auto tag) {
    using A = typename decltype(tag)::type;
    softmax_gradient_kernel<A>
        <<<unsigned(rows), kBlock, 0, cuda_stream(p.device())>>>(pointer<A>(p), pointer<A>(dp), keys, A(scale));
  });
  XY_CUDA(cudaGetLastError());
}

void rotary_table(const Tensor& table, double base) {
  const int64_t positions = table.size(1), half = table.size(2);
  visit_compute(table, [&](auto tag) {
    using A = typename decltype(tag)::type;
    rotary_table_kernel<A>
        <<<unsigned((positions * half + kBlock - 1) / kBlock), kBlock, 0, cuda_stream(table.device())>>>(
            pointer<A>(table), positions, half, base);
  });
  XY_CUDA(cudaGetLastError());
}

void rotary(const RotaryCall& r) {
  const Device device = r.x.device();
  visit_float(r.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const acc_t<T>* cosines = pointer<acc_t<T>>(r.table);
    RotaryArgs<T> a{.x = pointer<T>(r.x),
                    .out = pointer<T>(r.out),
                    .cosines = cosines,
                    .sines = cosines + r.table.stride(0),
                    .batch = r.x.size(0),
                    .positions = r.x.size(1),
                    .heads = r.x.size(2),
                    .half = r.x.size(3) / 2,
                    .stride_b = r.x.stride(0),
                    .stride_s = r.x.stride(1),
                    .stride_h = r.x.stride(2),
                    .sign = acc_t<T>(r.sign)};
    constexpr int V = 16 / sizeof(T);
    auto blocks = [&](int v) { return grid_for(r.x.numel() / 2 / v, kBlock, device); };
    const bool wide = a.half % V == 0 && a.stride_b % V == 0 && a.stride_s % V == 0 && a.stride_h % V == 0 &&
                      all_aligned16(a.x, a.out, a.cosines, a.sines);
    if (wide)
      rotary_kernel<T, V><<<blocks(V), kBlock, 0, cuda_stream(device)>>>(a);
    else
      rotary_kernel<T, 1><<<blocks(1), kBlock, 0, cuda_stream(device)>>>(a);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
