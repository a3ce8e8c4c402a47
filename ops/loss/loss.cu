// SPDX-License-Identifier: Apache-2.0
#include "core/device/fault.h"
#include "ops/backend/vec.cuh"
#include "ops/loss/loss.h"

namespace xylem::cuda {
namespace {

constexpr int kBlock = 512;
constexpr int kRowBlock = 768;  // two a multiprocessor, whose rows are still in the cache when they are read again
constexpr int kNarrow = 1024;   // classes up to which a warp takes a row

__device__ inline float exponential(float x) { return __expf(x); }
__device__ inline double exponential(double x) { return ::exp(x); }

template <class A>
constexpr A kLowest = -INFINITY;

// Calls one(i) or many(i) so that every i in [0, n) is met once: many(i) stands for V values from an aligned address.
// `p` is the address of value 0; the threads `lane` of `lanes` share the work. Without `vectors`, one(i) alone is
// called.
template <int V, class T, class One, class Many>
__device__ void walk(const T* p, int64_t n, bool vectors, int lane, int lanes, One&& one, Many&& many) {
  int64_t head = vectors ? (16 - reinterpret_cast<uintptr_t>(p) % 16) % 16 / sizeof(T) : n;
  if (head > n) head = n;
  const int64_t packs = (n - head) / V, tail = head + packs * V;
  for (int64_t i = lane; i < head; i += lanes) one(i);
  for (int64_t i = lane; i < packs; i += lanes) many(head + i * V);
  if (tail + lane < n) one(tail + lane);
}

template <class A>
struct Running {
  A top = kLowest<A>, sum = 0, total = 0;
  template <int V>
  __device__ void add(const A (&x)[V]) {
    A highest = x[0];
#pragma unroll
    for (int i = 1; i < V; ++i) highest = x[i] > highest ? x[i] : highest;
    if (highest > top) {
      sum *= exponential(top - highest);
      top = highest;
    }
    if (top == kLowest<A>) {  // nothing but -inf so far, or a NaN
      for (int i = 0; i < V; ++i) total += x[i];
      if (total != total) sum = total;
      return;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum += exponential(x[i] - top);
      total += x[i];
    }
  }
};

template <class T>
struct Args {
  using A = acc_t<T>;
  const T* logits;
  const int64_t* targets;
  A *lse, *row_loss;
  const A *inverse_count, *grad;
  T* dlogits;
  FaultSink fault;
  int64_t rows, classes, ignore_index;
  A smoothing;
  bool mean;
};

// The gradient of one row, (softmax - the target's distribution) * scale, or 0 for a target below 0; out may be x. The
// threads `lane` of `lanes` share the row.
template <class T>
__device__ void gradient_row(const Args<T>& a, const T* x, T* out, acc_t<T> lse, int64_t target, acc_t<T> scale,
                             int lane, int lanes) {
  using A = acc_t<T>;
  constexpr int V = 16 / sizeof(T);
  const bool together = (reinterpret_cast<uintptr_t>(x) - reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  const A spread = a.smoothing / A(a.classes), hit = 1 - a.smoothing;
  auto value = [&](int64_t i, A logit) {
    if (target < 0) return A(0);
    return (exponential(logit - lse) - spread - (i == target ? hit : A(0))) * scale;
  };
  walk<V>(
      x, a.classes, together, lane, lanes, [&](int64_t i) { out[i] = T(value(i, A(x[i]))); },
      [&](int64_t i) {
        Vec<T, V> pack = load<V>(x + i);
#pragma unroll
        for (int k = 0; k < V; ++k) pack.v[k] = T(value(i + k, A(pack.v[k])));
        store<V>(out + i, pack);
      });
}

template <class T>
__device__ bool counts(const Args<T>& a, int64_t row) {
  const int64_t t = a.targets[row];
  return t != a.ignore_index && t >= 0 && t < a.classes;
}

// A row's loss, and its gradient where a.dlogits is wanted; that may be written over the logits. A row has a warp of a
// block of (32, 4), or a block of (kRowBlock, 1).
template <class T, bool kWarpPerRow>
__global__ void __launch_bounds__(kWarpPerRow ? 4 * kWarp : kRowBlock, sizeof(T) == 8 ? 1 : 2) rows_kernel(Args<T> a) {
  using A = acc_t<T>;
  constexpr int V = 16 / sizeof(T);
  __shared__ A shared[kWarp + 1];
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const T* x = a.logits + row * a.classes;
  const int64_t target = a.targets[row];
  const bool used = counts(a, row);
  const A hit = used ? A(x[target]) : A(0);  // before anybody writes; the sums below are barriers
  Running<A> r;
  walk<V>(
      x, a.classes, true, threadIdx.x, blockDim.x,
      [&](int64_t i) {
        const A v[1] = {A(x[i])};
        r.add(v);
      },
      [&](int64_t i) {
        const Vec<T, V> pack = load<V>(x + i);
        A v[V];
#pragma unroll
        for (int k = 0; k < V; ++k) v[k] = A(pack.v[k]);
        r.add(v);
      });
  auto group_sum = [&](A v) { return kWarpPerRow ? warp_sum(v) : block_sum(v, shared); };
  const A top = kWarpPerRow ? warp_max(r.top) : block_max(r.top, shared);
  const A sum = group_sum(r.top == kLowest<A> ? r.sum : r.sum * exponential(r.top - top));
  const A total = a.smoothing > 0 ? group_sum(r.total) : A(0);
  const A lse = top + ::log(sum);
  if (threadIdx.x == 0) {
    if (a.lse) a.lse[row] = lse;
    if (!used && target != a.ignore_index) a.fault.note(target, a.classes);
    const A even = a.smoothing > 0 ? a.smoothing * total / A(a.classes) : A(0);
    a.row_loss[row] = used ? lse - (1 - a.smoothing) * hit - even : A(0);
  }
  if (a.dlogits)
    gradient_row(a, x, a.dlogits + row * a.classes, lse, used ? target : -1, A(1), threadIdx.x, blockDim.x);
}

// One block: the mean over the rows that count, or their sum.
template <class T>
__global__ void __launch_bounds__(1024) total_loss(Args<T> a, acc_t<T>* loss, acc_t<T>* inverse_count) {
  using A = acc_t<T>;
  __shared__ double shared[kWarp + 1];
  double sum = 0, count = 0;
#pragma unroll 8
  for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x) {
    sum += double(a.row_loss[r]);
    count += counts(a, r) ? 1 : 0;
  }
  sum = block_sum(sum, shared);
  count = block_sum(count, shared);
  if (threadIdx.x != 0) return;
  *loss = a.mean && count > 0 ? A(sum / count) : A(sum);
  *inverse_count = !a.mean ? A(1) : count > 0 ? A(1 / count) : A(0);
}

template <class T>
__global__ void __launch_bounds__(kBlock) backward(Args<T> a) {
  using A = acc_t<T>;
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const bool used = counts(a, row);
  const A scale = used ? *a.grad * *a.inverse_count : A(0);
  gradient_row(a, a.logits + row * a.classes, a.dlogits + row * a.classes, a.lse[row], used ? a.targets[row] : -1,
               scale, threadIdx.x, blockDim.x);
}

template <class T>
Args<T> args_of(const CrossEntropy& c) {
  using A = acc_t<T>;
  return {pointer<T>(c.logits),
          pointer<int64_t>(c.targets),
          pointer<A>(c.lse),
          pointer<A>(c.row_loss),
          pointer<A>(c.inverse_count),
          pointer<A>(c.grad),
          pointer<T>(c.dlogits),
          kTargetOutside.sink(c.logits.device()),
          c.rows,
          c.classes,
          c.args.ignore_index,
          A(c.args.label_smoothing),
          c.args.reduction == LossReduction::mean};
}

// Threads of a row and rows of a block.
dim3 block_for(int64_t classes, int wide) { return classes <= kNarrow ? dim3(kWarp, 4) : dim3(unsigned(wide), 1); }
unsigned grid_rows(int64_t rows, dim3 block) { return unsigned((rows + block.y - 1) / block.y); }

// ---- mean squared error ---------------------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kBlock) squared_error(const T* x, const T* target, int64_t n, double* partial) {
  using A = acc_t<T>;
  __shared__ double shared[kWarp + 1];
  double sum = 0;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    const A d = A(x[i]) - A(target[i]);
    sum += double(d * d);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class A>
__global__ void __launch_bounds__(kBlock) mean_of(const double* partial, int64_t parts, int64_t n, A* result) {
  __shared__ double shared[kWarp + 1];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *result = A(sum / double(n));
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    squared_error_backward(const T* x, const T* target, const acc_t<T>* grad, int64_t n, T* dx, T* dtarget) {
  using A = acc_t<T>;
  const A scale = 2 * *grad / A(n);
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    const A d = (A(x[i]) - A(target[i])) * scale;
    if (dx) dx[i] = T(d);
    if (dtarget) dtarget[i] = T(-d);
  }
}

}  // namespace

void cross_entropy_rows(const CrossEntropy& c) {
  if (c.rows == 0) return;
  visit_float(c.logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const dim3 block = block_for(c.classes, kRowBlock);
    auto kernel = block.y > 1 ? rows_kernel<T, true> : rows_kernel<T, false>;
    kernel<<<grid_rows(c.rows, block), block, 0, cuda_stream(c.logits.device())>>>(args_of<T>(c));
  });
  XY_CUDA(cudaGetLastError());
}

void cross_entropy_total(const CrossEntropy& c) {
  visit_float(c.logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    total_loss<T>
        <<<1, 1024, 0, cuda_stream(c.loss.device())>>>(args_of<T>(c), pointer<A>(c.loss), pointer<A>(c.inverse_count));
  });
  XY_CUDA(cudaGetLastError());
}

void cross_entropy_backward(const CrossEntropy& c) {
  visit_float(c.logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const dim3 block = block_for(c.classes, kBlock);
    backward<T><<<grid_rows(c.rows, block), block, 0, cuda_stream(c.logits.device())>>>(args_of<T>(c));
  });
  XY_CUDA(cudaGetLastError());
}

void mse(const Tensor& x, const Tensor& target, const Tensor& loss) {
  const Device device = x.device();
  const int64_t n = x.numel();
  const int blocks = grid_for(n, kBlock, device, 4);
  Tensor partial = empty({blocks}, f64, device);
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    squared_error<T>
        <<<blocks, kBlock, 0, cuda_stream(device)>>>(pointer<T>(x), pointer<T>(target), n, pointer<double>(partial));
    XY_CUDA(cudaGetLastError());
    mean_of<<<1, kBlock, 0, cuda_stream(device)>>>(pointer<double>(partial), int64_t(blocks), n,
                                                   pointer<acc_t<T>>(loss));
  });
  XY_CUDA(cudaGetLastError());
}

void mse_backward(const Tensor& x, const Tensor& target, const Tensor& grad, const Tensor& dx, const Tensor& dtarget) {
  const Device device = x.device();
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    squared_error_backward<T><<<grid_for(x.numel(), kBlock, device), kBlock, 0, cuda_stream(device)>>>(
        pointer<T>(x), pointer<T>(target), pointer<acc_t<T>>(grad), x.numel(), pointer<T>(dx), pointer<T>(dtarget));
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
