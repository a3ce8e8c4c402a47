// SPDX-License-Identifier: Apache-2.0
#include "ops/backend/vec.cuh"
#include "ops/optim/optim.h"

namespace xylem::cuda {
namespace {

constexpr int kBlock = 256;

// Whether V values can be moved at once.
template <int V, class T>
bool wide(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (V * sizeof(T)) == 0;
}

// Calls f.template at<V>(i) for every i in [0, n) in steps of V, and f.template at<1>(i) for the rest.
template <int V, class F>
__device__ void each(int64_t n, F&& f) {
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, packs = n / V;
  for (int64_t i = thread; i < packs; i += int64_t(gridDim.x) * blockDim.x) f.template at<V>(i * V);
  if (V > 1 && thread < n - packs * V) f.template at<1>(packs * V + thread);
}

template <class T, class G>
struct AdamW {
  using A = acc_t<T>;
  T* param;
  A* master;
  const G* grad;
  A *m, *v;
  const float* lr;
  const int64_t* step;
  const float* grad_scale;
  const int32_t* skip;
  int64_t n;
  double beta1, beta2, eps, weight_decay;
};

template <class T, class G>
struct AdamWUpdate {
  using A = acc_t<T>;
  const AdamW<T, G>& a;
  A beta1, beta2, eps, scale, keep, rate, root;

  template <int V>
  __device__ void at(int64_t i) {
    Vec<G, V> g = load<V>(a.grad + i);
    Vec<A, V> m = load<V>(a.m + i), v = load<V>(a.v + i), p;
    Vec<T, V> out;
    if (a.master) {
      p = load<V>(a.master + i);
    } else {
      out = load<V>(a.param + i);
#pragma unroll
      for (int k = 0; k < V; ++k) p.v[k] = A(out.v[k]);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const A d = A(g.v[k]) * scale;
      m.v[k] = beta1 * m.v[k] + (1 - beta1) * d;
      v.v[k] = beta2 * v.v[k] + (1 - beta2) * d * d;
      p.v[k] = p.v[k] * keep - rate * m.v[k] / (::sqrt(v.v[k]) * root + eps);
      out.v[k] = T(p.v[k]);
    }
    store<V>(a.m + i, m);
    store<V>(a.v + i, v);
    if (a.master) store<V>(a.master + i, p);
    store<V>(a.param + i, out);
  }
};

template <class T, class G, int V>
__global__ void __launch_bounds__(kBlock) adamw_kernel(AdamW<T, G> a) {
  using A = acc_t<T>;
  __shared__ A shared[3];
  if (a.skip && *a.skip != 0) return;
  if (threadIdx.x == 0) {
    const double lr = *a.lr, step = double(*a.step);
    shared[0] = A(1 - lr * a.weight_decay);
    shared[1] = A(lr / (1 - ::pow(a.beta1, step)));
    shared[2] = A(1 / ::sqrt(1 - ::pow(a.beta2, step)));
  }
  __syncthreads();
  AdamWUpdate<T, G> update{a,         A(a.beta1), A(a.beta2), A(a.eps), a.grad_scale ? A(*a.grad_scale) : A(1),
                           shared[0], shared[1],  shared[2]};
  each<V>(a.n, update);
}

template <class T, class G>
struct Sgd {
  using A = acc_t<T>;
  T* param;
  A* master;
  const G* grad;
  A* buffer;
  const float *lr, *grad_scale;
  const int32_t* skip;
  int64_t n;
  A momentum, weight_decay;
  bool nesterov;
};

template <class T, class G>
struct SgdUpdate {
  using A = acc_t<T>;
  const Sgd<T, G>& a;
  A lr, scale;

  template <int V>
  __device__ void at(int64_t i) {
    Vec<G, V> g = load<V>(a.grad + i);
    Vec<A, V> p, b;
    Vec<T, V> out;
    if (a.buffer) b = load<V>(a.buffer + i);
    if (a.master) {
      p = load<V>(a.master + i);
    } else {
      out = load<V>(a.param + i);
#pragma unroll
      for (int k = 0; k < V; ++k) p.v[k] = A(out.v[k]);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) {
      A d = A(g.v[k]) * scale + a.weight_decay * p.v[k];
      if (a.buffer) {
        b.v[k] = a.momentum * b.v[k] + d;
        d = a.nesterov ? d + a.momentum * b.v[k] : b.v[k];
      }
      p.v[k] -= lr * d;
      out.v[k] = T(p.v[k]);
    }
    if (a.buffer) store<V>(a.buffer + i, b);
    if (a.master) store<V>(a.master + i, p);
    store<V>(a.param + i, out);
  }
};

template <class T, class G, int V>
__global__ void __launch_bounds__(kBlock) sgd_kernel(Sgd<T, G> a) {
  using A = acc_t<T>;
  if (a.skip && *a.skip != 0) return;
  SgdUpdate<T, G> update{a, A(*a.lr), a.grad_scale ? A(*a.grad_scale) : A(1)};
  each<V>(a.n, update);
}

template <class T>
struct Ema {
  T* average;
  const T* value;
  acc_t<T> keep, take;

  template <int V>
  __device__ void at(int64_t i) {
    using A = acc_t<T>;
    Vec<T, V> a = load<V>(average + i), x = load<V>(value + i);
#pragma unroll
    for (int k = 0; k < V; ++k) a.v[k] = T(keep * A(a.v[k]) + take * A(x.v[k]));
    store<V>(average + i, a);
  }
};

template <class T, int V>
__global__ void __launch_bounds__(kBlock) ema_kernel(Ema<T> e, int64_t n) {
  each<V>(n, e);
}

template <class T>
struct Squares {
  const T* x;
  double sum = 0;

  template <int V>
  __device__ void at(int64_t i) {
    using A = acc_t<T>;
    Vec<T, V> p = load<V>(x + i);
    A s = 0;
#pragma unroll
    for (int k = 0; k < V; ++k) s += A(p.v[k]) * A(p.v[k]);
    sum += double(s);
  }
};

template <class T, int V>
__global__ void __launch_bounds__(kBlock) squares_kernel(const T* x, int64_t n, double* partial) {
  __shared__ double shared[kWarp + 1];
  Squares<T> squares{x};
  each<V>(n, squares);
  const double sum = block_sum(squares.sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(1024) total_kernel(const double* partial, int64_t parts, double* result) {
  __shared__ double shared[kWarp + 1];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *result = sum;
}

// Calls f(Tag<T>, Tag<G>) with the types of a parameter and its gradient.
template <class F>
void visit_update(const Tensor& param, const Tensor& grad, F&& f) {
  visit_float(param.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, acc_t<T>>) {
      if (grad.dtype() == param.dtype()) return f(tag, tag);
    }
    f(tag, Tag<acc_t<T>>{});
  });
}

}  // namespace

void adamw(const AdamWStep& s) {
  const Device device = s.param.device();
  visit_update(s.param, s.grad, [&](auto param_tag, auto grad_tag) {
    using T = typename decltype(param_tag)::type;
    using G = typename decltype(grad_tag)::type;
    using A = acc_t<T>;
    constexpr int V = 16 / sizeof(A);
    AdamW<T, G> a{pointer<T>(s.param),
                  pointer<A>(s.master),
                  pointer<G>(s.grad),
                  pointer<A>(s.m),
                  pointer<A>(s.v),
                  pointer<float>(s.lr),
                  pointer<int64_t>(s.step),
                  pointer<float>(s.grad_scale),
                  pointer<int32_t>(s.skip),
                  s.param.numel(),
                  s.args.beta1,
                  s.args.beta2,
                  s.args.eps,
                  s.args.weight_decay};
    const int blocks = grid_for((a.n + V - 1) / V, kBlock, device);
    if (wide<V>(a.param) && wide<V>(a.master) && wide<V>(a.grad) && wide<V>(a.m) && wide<V>(a.v))
      adamw_kernel<T, G, V><<<blocks, kBlock, 0, cuda_stream(device)>>>(a);
    else
      adamw_kernel<T, G, 1><<<blocks, kBlock, 0, cuda_stream(device)>>>(a);
  });
  XY_CUDA(cudaGetLastError());
}

void sgd(const SgdStep& s) {
  const Device device = s.param.device();
  visit_update(s.param, s.grad, [&](auto param_tag, auto grad_tag) {
    using T = typename decltype(param_tag)::type;
    using G = typename decltype(grad_tag)::type;
    using A = acc_t<T>;
    constexpr int V = 16 / sizeof(A);
    Sgd<T, G> a{pointer<T>(s.param),  pointer<A>(s.master),         pointer<G>(s.grad),       pointer<A>(s.momentum),
                pointer<float>(s.lr), pointer<float>(s.grad_scale), pointer<int32_t>(s.skip), s.param.numel(),
                A(s.args.momentum),   A(s.args.weight_decay),       s.args.nesterov};
    const int blocks = grid_for((a.n + V - 1) / V, kBlock, device);
    if (wide<V>(a.param) && wide<V>(a.master) && wide<V>(a.grad) && wide<V>(a.buffer))
      sgd_kernel<T, G, V><<<blocks, kBlock, 0, cuda_stream(device)>>>(a);
    else
      sgd_kernel<T, G, 1><<<blocks, kBlock, 0, cuda_stream(device)>>>(a);
  });
  XY_CUDA(cudaGetLastError());
}

void sum_of_squares(const Tensors& tensors, const Tensor& result) {
  const Device device = result.device();
  auto blocks_of = [&](const Tensor& t) {
    return t.numel() == 0 ? 0 : grid_for((t.nbytes() + 15) / 16, kBlock, device, 4);
  };
  int64_t parts = 0;
  for (const Tensor& t : tensors) parts += blocks_of(t);
  Tensor partial = empty({parts}, f64, device);
  double* at = pointer<double>(partial);
  for (const Tensor& t : tensors) {
    const int blocks = blocks_of(t);
    if (blocks == 0) continue;
    visit_float(t.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      constexpr int V = 16 / sizeof(T);
      const T* x = pointer<T>(t);
      if (aligned16(x))
        squares_kernel<T, V><<<blocks, kBlock, 0, cuda_stream(device)>>>(x, t.numel(), at);
      else
        squares_kernel<T, 1><<<blocks, kBlock, 0, cuda_stream(device)>>>(x, t.numel(), at);
    });
    XY_CUDA(cudaGetLastError());
    at += blocks;
  }
  total_kernel<<<1, 1024, 0, cuda_stream(device)>>>(pointer<double>(partial), parts, pointer<double>(result));
  XY_CUDA(cudaGetLastError());
}

void ema(const Tensor& average, const Tensor& value, double decay) {
  const Device device = average.device();
  visit_float(average.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    constexpr int V = 16 / sizeof(T);
    Ema<T> e{pointer<T>(average), pointer<T>(value), A(decay), A(1 - decay)};
    const int64_t n = average.numel();
    const int blocks = grid_for((n + V - 1) / V, kBlock, device);
    if (all_aligned16(e.average, e.value))
      ema_kernel<T, V><<<blocks, kBlock, 0, cuda_stream(device)>>>(e, n);
    else
      ema_kernel<T, 1><<<blocks, kBlock, 0, cuda_stream(device)>>>(e, n);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
