// SPDX-License-Identifier: Apache-2.0
// Two layouts: `rows` gives each output a block whose threads share the summands; `columns` gives each output a thread
// and lets eight rows of threads share the summands, so that neighbouring threads read neighbouring memory. Where there
// are too few outputs to fill the GPU the summands are cut into splits, and a second launch joins the partial results.
// No atomics: every order is fixed.
#include <limits>

#include "core/device/kernel.cuh"
#include "core/tensor/reduce.h"

namespace xylem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32, kDepth = 8;  // the columns layout

__device__ int64_t offset_of(const ReducePlan::Dims& d, int64_t i) {
  if (d.rank == 1) return i * d.stride[0];
  int64_t at = 0;
  for (int k = d.rank - 1; k >= 0; --k) at += i % d.shape[k] * d.stride[k], i /= d.shape[k];
  return at;
}

template <class A>
struct Sum {
  __device__ static A start() { return 0; }
  __device__ static A join(A a, A b) { return a + b; }
};
template <class A, bool kMax>
struct Extremum {
  __device__ static A start() { return kMax ? -INFINITY : INFINITY; }
  __device__ static A join(A a, A b) { return (kMax ? b > a : b < a) || b != b ? b : a; }
};

template <class Op, class A>
__device__ A block_join(A v, A* shared) {
  for (int d = kWarp / 2; d > 0; d /= 2) v = Op::join(v, __shfl_xor_sync(0xffffffffu, v, d));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = Op::start();
  for (int w = 0; w < kThreads / kWarp; ++w) v = Op::join(v, shared[w]);
  return v;
}

// One block per (output, split); y is [splits, outputs].
template <class Op, class In, class Out, class A>
__global__ void __launch_bounds__(kThreads) rows(const In* x, Out* y, ReducePlan p, int64_t per_split, A scale) {
  __shared__ A shared[kThreads / kWarp];
  int64_t begin = blockIdx.y * per_split, end = min(p.reduced.numel, begin + per_split);
  for (int64_t o = blockIdx.x; o < p.kept.numel; o += gridDim.x) {
    const In* base = x + offset_of(p.kept, o);
    A v = Op::start();
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) v = Op::join(v, A(base[offset_of(p.reduced, i)]));
    v = block_join<Op>(v, shared);
    if (threadIdx.x == 0) y[blockIdx.y * p.kept.numel + o] = Out(v * scale);
    __syncthreads();
  }
}

template <class Op, class In, class Out, class A>
__global__ void __launch_bounds__(kLanes* kDepth)
    columns(const In* x, Out* y, ReducePlan p, int64_t per_split, A scale) {
  __shared__ A shared[kDepth][kLanes];
  int64_t begin = blockIdx.y * per_split, end = min(p.reduced.numel, begin + per_split);
  for (int64_t first = int64_t(blockIdx.x) * kLanes; first < p.kept.numel; first += int64_t(gridDim.x) * kLanes) {
    int64_t o = first + threadIdx.x;
    A v = Op::start();
    if (o < p.kept.numel) {
      const In* base = x + offset_of(p.kept, o);
#pragma unroll 4
      for (int64_t i = begin + threadIdx.y; i < end; i += kDepth) v = Op::join(v, A(base[offset_of(p.reduced, i)]));
    }
    shared[threadIdx.y][threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.y == 0 && o < p.kept.numel) {
      for (int d = 1; d < kDepth; ++d) v = Op::join(v, shared[d][threadIdx.x]);
      y[blockIdx.y * p.kept.numel + o] = Out(v * scale);
    }
    __syncthreads();
  }
}

template <class Op, class In, class Out, class A>
void launch(const In* x, Out* y, const ReducePlan& p, bool by_columns, int64_t splits, A scale, Device device) {
  int64_t per_split = (p.reduced.numel + splits - 1) / splits;
  int64_t blocks = by_columns ? (p.kept.numel + kLanes - 1) / kLanes : p.kept.numel;
  dim3 grid(unsigned(std::min<int64_t>(blocks, 1 << 20)), unsigned(splits));
  if (by_columns)
    columns<Op, In, Out, A><<<grid, dim3(kLanes, kDepth), 0, cuda_stream(device)>>>(x, y, p, per_split, scale);
  else
    rows<Op, In, Out, A><<<grid, kThreads, 0, cuda_stream(device)>>>(x, y, p, per_split, scale);
  XY_CUDA(cudaGetLastError());
}

template <template <class> class Op, class T>
void reduce_as(const Tensor& x, const Tensor& y, const ReducePlan& p, double scale) {
  using A = acc_t<T>;
  Device device = x.device();
  bool by_columns = p.columns();
  int64_t blocks = by_columns ? (p.kept.numel + kLanes - 1) / kLanes : p.kept.numel;
  int64_t room = 4 * multiprocessors(device), least = by_columns ? 256 : 4096;
  int64_t splits = std::clamp<int64_t>(std::min(room / std::max<int64_t>(blocks, 1), p.reduced.numel / least), 1, 1024);
  if (splits == 1) {
    launch<Op<A>, T, T, A>(x.data<T>(), y.data<T>(), p, by_columns, 1, A(scale), device);
    return;
  }
  Tensor partial = empty({splits, p.kept.numel}, dtype_of<A>, device);
  launch<Op<A>, T, A, A>(x.data<T>(), partial.data<A>(), p, by_columns, splits, A(1), device);
  ReducePlan join = plan_reduction(partial, {true, false});
  launch<Op<A>, A, T, A>(partial.data<A>(), y.data<T>(), join, true, 1, A(scale), device);
}

template <class A>
using Max = Extremum<A, true>;
template <class A>
using Min = Extremum<A, false>;

}  // namespace

void reduce(const Tensor& x, const Tensor& y, const ReducePlan& plan, ReduceKind kind, double scale) {
  switch (kind) {
    case ReduceKind::sum:
      return visit_summand(x.dtype(),
                           [&](auto tag) { reduce_as<Sum, typename decltype(tag)::type>(x, y, plan, scale); });
    case ReduceKind::max:
      return visit_float(x.dtype(), [&](auto tag) { reduce_as<Max, typename decltype(tag)::type>(x, y, plan, scale); });
    case ReduceKind::min:
      return visit_float(x.dtype(), [&](auto tag) { reduce_as<Min, typename decltype(tag)::type>(x, y, plan, scale); });
  }
}

}  // namespace xylem::cuda
