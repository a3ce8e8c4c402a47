// SPDX-License-Identifier: Apache-2.0
// Column sums (bias gradients) in a fixed order: every block sums some columns over a run of rows, then one thread per
// column adds the runs.
#include "core/device/kernel.cuh"
#include "ops/matmul/matmul.h"

namespace xylem::cuda {
namespace {

constexpr int kColumns = 32, kRows = 8;
constexpr int kAhead = 4;  // rows that a thread reads before it adds them: the memory is far away

template <class A, class TO>
__device__ void store(TO* out, A sum, bool accumulate) {
  *out = TO(accumulate ? A(*out) + sum : sum);
}

// One block: kColumns * V columns, rows [blockIdx.y * run, + run). Writes partial[blockIdx.y, column], or the result
// itself when there is one run.
template <class T, class TO, int V>
__global__ void __launch_bounds__(kColumns* kRows)
    sum_rows(const T* x, acc_t<T>* partial, TO* out, int64_t rows, int64_t columns, int64_t run, bool accumulate) {
  using A = acc_t<T>;
  __shared__ A shared[kRows][kColumns * V];
  int64_t column = (int64_t(blockIdx.x) * kColumns + threadIdx.x) * V;
  A sum[V] = {};
  if (column < columns) {
    const int64_t end = min(rows, int64_t(blockIdx.y + 1) * run);
    int64_t r = int64_t(blockIdx.y) * run + threadIdx.y;
    if constexpr (V > 1) {
      for (; r + (kAhead - 1) * kRows < end; r += kAhead * kRows) {
        Pack<T> ahead[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) ahead[k] = Pack<T>::load_streaming(x + (r + k * kRows) * columns + column);
#pragma unroll
        for (int k = 0; k < kAhead; ++k)
#pragma unroll
          for (int i = 0; i < V; ++i) sum[i] += A(ahead[k].v[i]);
      }
    }
    for (; r < end; r += kRows)
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += A(x[r * columns + column + i]);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) shared[threadIdx.y][threadIdx.x * V + i] = sum[i];
  __syncthreads();
  for (int c = threadIdx.y * kColumns + threadIdx.x; c < kColumns * V; c += kColumns * kRows) {
    int64_t at = int64_t(blockIdx.x) * kColumns * V + c;
    if (at >= columns) continue;
    A total = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) total += shared[r][c];
    if (gridDim.y == 1)
      store(out + at, total, accumulate);
    else
      partial[blockIdx.y * columns + at] = total;
  }
}

template <class A, class TO>
__global__ void sum_runs(const A* partial, TO* out, int runs, int64_t columns, bool accumulate) {
  int64_t c = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  A total = 0;
  for (int i = 0; i < runs; ++i) total += partial[i * columns + c];
  store(out + c, total, accumulate);
}

template <class T, class TO>
void launch(const Tensor& x, TO* out, bool accumulate) {
  using A = acc_t<T>;
  constexpr int V = Pack<T>::size;
  const T* data = x.data<T>();
  int64_t rows = x.size(0), columns = x.size(1);
  bool vectors = columns % V == 0 && aligned16(data);
  int64_t width = kColumns * (vectors ? V : 1), blocks = (columns + width - 1) / width;
  int64_t runs = std::clamp<int64_t>(int64_t(multiprocessors(x.device())) * 4 / blocks, 1, 128);
  runs = std::clamp<int64_t>(rows / (4 * kRows), 1, runs);
  int64_t run = (rows + runs - 1) / runs;
  Tensor partial = empty({runs > 1 ? runs * columns : 0}, dtype_of<A>, x.device());
  A* sums = runs > 1 ? partial.data<A>() : nullptr;
  auto stream = cuda_stream(x.device());
  auto kernel = vectors ? sum_rows<T, TO, V> : sum_rows<T, TO, 1>;
  kernel<<<dim3(unsigned(blocks), unsigned(runs)), dim3(kColumns, kRows), 0, stream>>>(data, sums, out, rows, columns,
                                                                                       run, accumulate);
  XY_CUDA(cudaGetLastError());
  if (runs == 1) return;
  sum_runs<A, TO><<<unsigned((columns + 127) / 128), 128, 0, stream>>>(sums, out, int(runs), columns, accumulate);
  XY_CUDA(cudaGetLastError());
}

}  // namespace

void run_column_sum(const Tensor& x, const Tensor& out, bool accumulate) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (out.dtype() == x.dtype()) return launch<T>(x, out.data<T>(), accumulate);
    XY_ASSERT(is_half(x.dtype()) && out.dtype() == f32);
    if constexpr (sizeof(T) == 2) launch<T>(x, out.data<float>(), accumulate);
  });
}

}  // namespace xylem::cuda
