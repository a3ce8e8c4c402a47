// SPDX-License-Identifier: Apache-2.0
// The engine of optimizers' kernels: from the rule for one value to one pass over flat buffers, on CPU and CUDA, in
// every float type, with f32 masters of 16-bit parameters.
//
//   struct Descent {
//     static constexpr std::array<const char*, 1> kStates = {"momentum"};  // buffers that the rule keeps, as errors
//     name them template <class A> struct Factors { A lr, momentum; }; double momentum; template <class A> XY_HD
//     Factors<A> factors(double lr, double step) const { return {A(lr), A(momentum)}; }  // once a launch template
//     <class A> static XY_HD A move(const Factors<A>& f, A p, A g, A* state) {  // returns the new p
//       state[0] = f.momentum * state[0] + g;
//       return p - f.lr * state[0];
//     }
//   };
//   update::run(Descent{0.9}, {.param = param, .master = master, ...});
//
// A is float (also for f16 and bf16) or double. The file of a rule is named *_step.cu: nvcc compiles it, and a build
// without CUDA does as C++.
#pragma once
#include <array>
#include <span>
#include <utility>

#include "core/tensor/dispatch.h"
#include "core/util/parallel.h"
#include "ops/elementwise/pointwise.h"
#ifdef __CUDACC__
#include "ops/optim/each.cuh"
#endif

namespace xylem::update {

// All contiguous and of one size; lr, step, grad_scale and skip have one element and are read on the device.
struct Buffers {
  Tensor param, master, grad;  // master may be undefined; grad: param's type or the one it is computed in
  Tensors states;              // in the type it is computed in
  Tensor lr, step;             // step may be undefined where the rule does not ask for it
  Tensor grad_scale, skip;     // may be undefined
};

// Throws unless everything fits; packs the gradient in a type that the kernels take.
void check(Buffers& b, std::span<const char* const> state_names);
void changed(const Buffers& b);

// Calls f(Tag<T>, Tag<G>) with the types of a parameter and its gradient.
template <class F>
void visit_types(const Buffers& b, F&& f) {
  visit_float(b.param.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, acc_t<T>>) {
      if (b.grad.dtype() == b.param.dtype()) return f(tag, tag);
    }
    f(tag, Tag<acc_t<T>>{});
  });
}

template <class Rule>
inline constexpr size_t kStates = Rule::kStates.size();

template <class T>
T* pointer(const Tensor& t) {
  return t.defined() ? static_cast<T*>(t.raw()) : nullptr;
}

template <class Rule, class T, class G>
struct Pointers {
  using A = acc_t<T>;
  T* param;
  A* master;
  const G* grad;
  A* states[kStates<Rule> + 1] = {};
  const float* lr;
  const int64_t* step;
  const float* grad_scale;
  const int32_t* skip;
  int64_t n;

  explicit Pointers(const Buffers& b)
      : param(pointer<T>(b.param)),
        master(pointer<A>(b.master)),
        grad(pointer<const G>(b.grad)),
        lr(pointer<const float>(b.lr)),
        step(pointer<const int64_t>(b.step)),
        grad_scale(pointer<const float>(b.grad_scale)),
        skip(pointer<const int32_t>(b.skip)),
        n(b.param.numel()) {
    A** next = states;
    for (const Tensor& t : b.states) *next++ = pointer<A>(t);
  }
  XY_HD bool skipped() const { return skip && *skip != 0; }
  XY_HD A scale() const { return grad_scale ? A(*grad_scale) : A(1); }
  XY_HD auto factors(const Rule& rule) const {
    return rule.template factors<A>(double(*lr), step ? double(*step) : 0.0);
  }
};

// ---- CPU -----------------------------------------------------------------------------------------------------------

namespace cpu {

template <bool kMaster, class Rule, class T, class G, size_t... K>
XY_FLATTEN void run_range(const Pointers<Rule, T, G> b, const typename Rule::template Factors<acc_t<T>> f,
                          int64_t begin, int64_t end, std::index_sequence<K...>) {
  using A = acc_t<T>;
  const A scale = b.scale();
  XY_SIMD
  for (int64_t i = begin; i < end; ++i) {
    A state[] = {b.states[K][i]..., A(0)};
    const A p = Rule::move(f, kMaster ? b.master[i] : A(b.param[i]), A(b.grad[i]) * scale, state);
    ((b.states[K][i] = state[K]), ...);
    if (kMaster) b.master[i] = p;
    b.param[i] = T(p);
  }
}

template <class Rule, class T, class G>
void launch(const Rule& rule, const Pointers<Rule, T, G>& b) {
  constexpr int64_t kGrain = 16384;
  if (b.skipped()) return;
  const auto f = b.factors(rule);
  constexpr std::make_index_sequence<kStates<Rule>> states{};
  parallel_for(b.n, kGrain, [&](int64_t begin, int64_t end) {
    b.master ? run_range<true>(b, f, begin, end, states) : run_range<false>(b, f, begin, end, states);
  });
}

}  // namespace cpu

// ---- CUDA ----------------------------------------------------------------------------------------------------------

#ifdef __CUDACC__
namespace cuda {

using namespace xylem::cuda;  // vectors, launch sizes

template <class Rule, class T, class G>
struct Move {
  using A = acc_t<T>;
  const Pointers<Rule, T, G>& b;
  typename Rule::template Factors<A> f;
  A scale;

  template <int V>
  __device__ void at(int64_t i) {
    constexpr int N = int(kStates<Rule>);
    Vec<G, V> g = load<V>(b.grad + i);
    Vec<A, V> p, states[N + 1];
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < N; ++k) states[k] = load<V>(b.states[k] + i);
    if (b.master) {
      p = load<V>(b.master + i);
    } else {
      out = load<V>(b.param + i);
#pragma unroll
      for (int j = 0; j < V; ++j) p.v[j] = A(out.v[j]);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      A state[N + 1];
#pragma unroll
      for (int k = 0; k < N; ++k) state[k] = states[k].v[j];
      p.v[j] = Rule::move(f, p.v[j], A(g.v[j]) * scale, state);
#pragma unroll
      for (int k = 0; k < N; ++k) states[k].v[j] = state[k];
      out.v[j] = T(p.v[j]);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) store<V>(b.states[k] + i, states[k]);
    if (b.master) store<V>(b.master + i, p);
    store<V>(b.param + i, out);
  }
};

template <class Rule, class T, class G, int V>
__global__ void __launch_bounds__(kBlock) kernel(Pointers<Rule, T, G> b, Rule rule) {
  __shared__ typename Rule::template Factors<acc_t<T>> shared;
  if (b.skipped()) return;
  if (threadIdx.x == 0) shared = b.factors(rule);
  __syncthreads();
  Move<Rule, T, G> move{b, shared, b.scale()};
  each<V>(b.n, move);
}

template <class Rule, class T, class G>
void launch(const Rule& rule, const Pointers<Rule, T, G>& b, Device device) {
  constexpr int V = 16 / sizeof(acc_t<T>);
  const int blocks = grid_for((b.n + V - 1) / V, kBlock, device);
  bool vectors = wide<V>(b.param) && wide<V>(b.master) && wide<V>(b.grad);
  for (auto* state : b.states) vectors = vectors && wide<V>(state);
  if (vectors)
    kernel<Rule, T, G, V><<<blocks, kBlock, 0, cuda_stream(device)>>>(b, rule);
  else
    kernel<Rule, T, G, 1><<<blocks, kBlock, 0, cuda_stream(device)>>>(b, rule);
  XY_CUDA(cudaGetLastError());
}

}  // namespace cuda
#endif

template <class Rule>
void run(const Rule& rule, Buffers b) {
  NoGrad guard;
  check(b, Rule::kStates);
  if (b.param.numel() == 0) return;
  visit_types(b, [&](auto param_tag, auto grad_tag) {
    Pointers<Rule, typename decltype(param_tag)::type, typename decltype(grad_tag)::type> pointers(b);
#ifdef __CUDACC__
    if (b.param.is_cuda()) return cuda::launch(rule, pointers, b.param.device());
#else
    detail::require_cpu(b.param);
#endif
    cpu::launch(rule, pointers);
  });
  changed(b);
}

}  // namespace xylem::update
