// SPDX-License-Identifier: Apache-2.0
// The pointwise engine: from a functor to an operation on CPU and CUDA, in every float type, with its gradient.
//
//   struct Square {
//     template <class A>
//     static XY_HD A fwd(A x) { return x * x; }
//     template <class A>
//     static XY_HD A bwd(A dy, A x) { return A(2) * x * dy; }  // keeps the input for the backward pass
//   };
//   XY_POINTWISE(square, Square)                               // defines xylem::Tensor square(const xylem::Tensor&)
//
// A stands for float (also for f16 and bf16) or double. A functor may instead define
//   bwd_from_output(A dy, A y)                keeps the output, and not the input
// and may add
//   bwd_ops(const Tensor& dy, const Tensor& kept)   the same in operations: gives second derivatives
//   static constexpr double sample_low, sample_high     range of sample inputs for the tests, else [-3, 3]
//   static constexpr pointwise::OnnxOperator onnx       the operator of ONNX that it is: gives export and import
//   static std::string onnx_composed(OnnxBuilder&, const std::string& x)   the same of older operators, or the only
//   form
// and hold parameters as members, which are the operator's attributes (clamp in relu.cu has a form of its own). The
// file is a .cu for nvcc; it is also valid C++ for builds without CUDA. docs/adding_an_op.md walks through it.
#pragma once
#include <utility>

#include "ops/elementwise/lowering.h"
#include "ops/elementwise/math.h"
#include "ops/elementwise/plan.h"
#include "ops/ops.h"
#ifdef __CUDACC__
#include "core/device/kernel.cuh"
#endif

#ifdef __GNUC__
#define XY_FLATTEN __attribute__((flatten))
#else
#define XY_FLATTEN
#endif
#ifdef _OPENMP
#define XY_SIMD _Pragma("omp simd")
#else
#define XY_SIMD
#endif

namespace xylem::pointwise {

// The result of a functor that fills two outputs at once.
template <class A>
struct Pair {
  A first, second;
};
template <class R>
inline constexpr int kOutputs = 1;
template <class A>
inline constexpr int kOutputs<Pair<A>> = 2;

template <class F, class... I>
using Result = decltype(std::declval<const F&>()(std::declval<acc_t<I>>()...));

// ---- CPU -----------------------------------------------------------------------------------------------------------

namespace cpu {

template <class T>
struct Operand {
  T* p;
  int64_t stride;
};

template <class O, class R>
inline void store(O* first, [[maybe_unused]] O* second, int64_t i, R r) {
  if constexpr (kOutputs<R> == 2)
    first[i] = O(r.first), second[i] = O(r.second);
  else
    first[i] = O(r);
}

// Step is 1 where the operand advances and 0 where it repeats; constants, so that the loop vectorises. So does flatten:
// a call left in the loop would forbid it.
template <int... Step, class F, class O, class... I>
XY_FLATTEN void run_unit(F f, int64_t n, O* __restrict o, O* __restrict o2, const I* __restrict... in) {
  XY_SIMD
  for (int64_t i = 0; i < n; ++i) store(o, o2, i, f(static_cast<acc_t<I>>(in[Step * i])...));
}

template <class F, class O, class... I>
void run_row(const F& f, int64_t n, Operand<O> o, Operand<O> o2, Operand<const I>... in) {
  bool unit = o.stride == 1 && o2.stride == 1;
  if (unit && ((in.stride == 1) && ...)) return run_unit<((void)sizeof(I), 1)...>(f, n, o.p, o2.p, in.p...);
  if constexpr (sizeof...(I) == 2) {
    const int64_t steps[] = {in.stride...};
    if (unit && steps[0] == 1 && steps[1] == 0) return run_unit<1, 0>(f, n, o.p, o2.p, in.p...);
    if (unit && steps[0] == 0 && steps[1] == 1) return run_unit<0, 1>(f, n, o.p, o2.p, in.p...);
  }
  for (int64_t i = 0; i < n; ++i)
    store(o.p + i * o.stride, o2.p + i * o2.stride, 0, f(static_cast<acc_t<I>>(in.p[i * in.stride])...));
}

template <class F, class O, class... I>
void launch(const StridedPlan& plan, const F& f) {
  constexpr int outputs = kOutputs<Result<F, I...>>;
  struct Context {
    const StridedPlan& plan;
    const F& f;
  } context{plan, f};
  for_rows(
      plan,
      [](const void* c, const int64_t* at, int64_t n) {
        const StridedPlan& p = static_cast<const Context*>(c)->plan;
        [&]<size_t... K>(std::index_sequence<K...>) {
          int last = p.rank - 1;
          auto output = [&](int k) { return Operand<O>{static_cast<O*>(p.data[k]) + at[k], p.stride[k][last]}; };
          run_row<F, O, I...>(static_cast<const Context*>(c)->f, n, output(0), output(outputs - 1),
                              Operand<const I>{static_cast<const I*>(p.data[outputs + K]) + at[outputs + K],
                                               p.stride[outputs + K][last]}...);
        }
        (std::index_sequence_for<I...>{});
      },
      &context);
}

}  // namespace cpu

// ---- CUDA ----------------------------------------------------------------------------------------------------------

#ifdef __CUDACC__
namespace cuda {

template <class T, int V>
struct alignas(sizeof(T) * V) Lanes {
  T v[V];
};

// V neighbours of an operand, or one value repeated.
template <class T, int V>
__device__ Lanes<T, V> load(const void* data, int64_t at, bool repeat) {
  const T* p = static_cast<const T*>(data) + at;
  if constexpr (V > 1) {
    if (!repeat) return *reinterpret_cast<const Lanes<T, V>*>(p);
  }
  Lanes<T, V> out;
#pragma unroll
  for (int j = 0; j < V; ++j) out.v[j] = *p;
  return out;
}

template <class O, int V, class F, class... I>
__device__ void compute(const F& f, O* first, O* second, Lanes<I, V>... in) {
  using R = Result<F, I...>;
  Lanes<O, V> a, b;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    R r = f(static_cast<acc_t<I>>(in.v[j])...);
    if constexpr (kOutputs<R> == 2)
      a.v[j] = O(r.first), b.v[j] = O(r.second);
    else
      a.v[j] = O(r);
  }
  *reinterpret_cast<Lanes<O, V>*>(first) = a;
  if constexpr (kOutputs<R> == 2) *reinterpret_cast<Lanes<O, V>*>(second) = b;
}

// Offsets of item i, an item being V neighbours along the last dimension.
template <int V, int N, class Index>
__device__ void locate(const StridedPlan& p, Index i, int64_t (&at)[N]) {
  for (int d = p.rank - 1; d >= 0; --d) {
    Index size = Index(d == p.rank - 1 ? p.shape[d] / V : p.shape[d]);
    Index next = d > 0 ? i / size : 0;
    int64_t here = int64_t(i - next * size) * (d == p.rank - 1 ? V : 1);
    i = next;
#pragma unroll
    for (int k = 0; k < N; ++k) at[k] += here * p.stride[k][d];
  }
}

template <int V, class F, class O, class... I, size_t... K>
__device__ void item(const StridedPlan& p, const F& f, int64_t i, std::index_sequence<K...>) {
  constexpr int outputs = kOutputs<Result<F, I...>>, n = outputs + int(sizeof...(I));
  int64_t at[n] = {};
  if (p.rank == 1) {
#pragma unroll
    for (int k = 0; k < n; ++k) at[k] = i * V * p.stride[k][0];
  } else if (p.numel <= INT32_MAX) {
    locate<V>(p, uint32_t(i), at);
  } else {
    locate<V>(p, i, at);
  }
  compute<O, V, F, I...>(f, static_cast<O*>(p.data[0]) + at[0], static_cast<O*>(p.data[outputs - 1]) + at[outputs - 1],
                         load<I, V>(p.data[outputs + K], at[outputs + K], p.stride[outputs + K][p.rank - 1] == 0)...);
}

// Takes `packs` items of V neighbours, then what is left one by one: the tail of a flat range, or everything where
// strides or alignment forbid vectors.
template <int V, class F, class O, class... I>
__global__ void __launch_bounds__(256, sizeof(O) == 8 ? 2 : 5) kernel(StridedPlan p, F f, int64_t packs) {
  int64_t step = int64_t(gridDim.x) * blockDim.x, thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = thread; i < packs; i += step) item<V, F, O, I...>(p, f, i, std::index_sequence_for<I...>{});
  for (int64_t i = packs * V + thread; i < p.numel; i += step)
    item<1, F, O, I...>(p, f, i, std::index_sequence_for<I...>{});
}

template <class F, class O, class... I>
void launch(const StridedPlan& plan, const F& f, Device device) {
  constexpr int outputs = kOutputs<Result<F, I...>>, block = 256;
  constexpr int lanes = 16 / int(std::max({sizeof(O), sizeof(I)...}));
  if (plan.numel == 0) return;
  const int input_bytes[] = {int(sizeof(I))...};
  int bytes[outputs + sizeof...(I)];
  for (int k = 0; k < plan.operands; ++k) bytes[k] = k < outputs ? int(sizeof(O)) : input_bytes[k - outputs];
  int64_t packs = plan.packable(lanes, bytes) ? plan.numel / lanes : 0;
  static const int resident = xylem::cuda::resident_blocks(kernel<lanes, F, O, I...>, block);
  int grid = xylem::cuda::grid_for(packs > 0 ? packs : plan.numel, block, device, resident);
  kernel<lanes, F, O, I...><<<grid, block, 0, cuda_stream(device)>>>(plan, f, packs);
  XY_CUDA(cudaGetLastError());
}

}  // namespace cuda
#endif

// ---- both ----------------------------------------------------------------------------------------------------------

// outputs = f(inputs...) with the stored types O and I...; `operands` are the outputs, then the inputs. Not recorded.
template <class O, class... I, class F>
void run(const F& f, std::initializer_list<const Tensor*> operands) {
  const Tensor& out = **operands.begin();
  for (const Tensor* t : operands)
    XY_CHECK(t->device() == out.device(), "operands are on ", out.device(), " and ", t->device());
  StridedPlan plan = plan_strided(operands);
  if (out.is_cuda()) {
#ifdef __CUDACC__
    cuda::launch<F, O, I...>(plan, f, out.device());
#else
    XY_FAIL("this operation was compiled without nvcc and cannot run on ", out.device());
#endif
  } else {
    cpu::launch<F, O, I...>(plan, f);
  }
}

// f's forward and backward as plain function objects.
template <class F>
struct Forward {
  F f;
  template <class A>
  XY_HD A operator()(A x) const {
    return f.fwd(x);
  }
};
template <class F>
inline constexpr bool keeps_output = requires(const F& f) {
  f.bwd_from_output(1.0, 1.0);
};
template <class F>
struct BackwardOf {
  F f;
  template <class A>
  XY_HD A operator()(A dy, A kept) const {
    if constexpr (keeps_output<F>)
      return f.bwd_from_output(dy, kept);
    else
      return f.bwd(dy, kept);
  }
};
template <class F>
inline constexpr bool has_second_derivative = requires(const F& f, const Tensor& t) {
  f.bwd_ops(t, t);
};

template <class F>
inline constexpr bool has_operator = requires {
  F::onnx;
};
template <class F>
inline constexpr bool has_composition = requires(OnnxBuilder& onnx, const std::string& x) {
  F::onnx_composed(onnx, x);
};

// The members of f under the names that its operator gives them.
template <class F>
Attrs attributes_of([[maybe_unused]] const F& f) {
  if constexpr (has_operator<F>) {
    if constexpr (F::onnx.count() == 1) {
      const auto& [a] = f;
      return {{F::onnx.numbers[0].name, a}};
    } else if constexpr (F::onnx.count() == 2) {
      const auto& [a, b] = f;
      return {{F::onnx.numbers[0].name, a}, {F::onnx.numbers[1].name, b}};
    }
  }
  return {};
}
// A functor with the members that a node of its operator says.
template <class F>
F functor_of([[maybe_unused]] const ImportedOp& node) {
  [[maybe_unused]] auto number = [&](int i) {
    return node.number(F::onnx.numbers[i].name, F::onnx.numbers[i].otherwise);
  };
  if constexpr (F::onnx.count() == 2)
    return F{number(0), number(1)};
  else if constexpr (F::onnx.count() == 1)
    return F{number(0)};
  else
    return F{};
}

// y = f(x), recorded.
template <class F>
Tensor unary(const OpSpec& spec, const Tensor& x, const F& f, const Attrs& attrs) {
  OpScope scope(spec);
  Tensor y = visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    Tensor out = empty_output(x.shape(), x.dtype(), {&x});
    run<T, T>(Forward<F>{f}, {&out, &x});
    return out;
  });
  Saved kept = keeps_output<F> ? Saved::output(y) : Saved(x);
  return record(spec, y, {x}, attrs, [f, saved = std::move(kept)](const Tensor& dy, const Wanted& want) -> Tensors {
    Tensor kept = saved.get();
    if constexpr (has_second_derivative<F>) {
      if (want.create_graph()) return {f.bwd_ops(dy, kept)};
    }
    return {visit_float(kept.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      Tensor dx = empty_output(kept.shape(), kept.dtype(), {&kept, &dy});
      run<T, T, T>(BackwardOf<F>{f}, {&dx, &dy, &kept});
      return dx;
    })};
  });
}

template <class F>
Tensor unary(const OpSpec& spec, const Tensor& x, const F& f) {
  return unary(spec, x, f, attributes_of(f));
}

// Export and import, as far as the functor declares them.
template <class F>
void declare_onnx([[maybe_unused]] OpSpec& spec) {
  Composition composed = nullptr;
  if constexpr (has_composition<F>) composed = F::onnx_composed;
  if constexpr (has_operator<F>) {
    OpSpec::OnnxVariant variant;
    if constexpr (F::onnx.variant.attribute != nullptr) variant = {F::onnx.variant.attribute, F::onnx.variant.value};
    spec.onnx(lower_unary(F::onnx, composed));
    auto import = [&spec](const ImportedOp& node) -> Tensors { return {unary(spec, node.in(0), functor_of<F>(node))}; };
    spec.imports(F::onnx.name, import, variant);
  } else if (composed) {
    spec.onnx(lower_unary(composed));
  }
}

template <class F>
OpSpec& spec_of(const char* name, std::function<Tensor(const Tensor&)> call) {
  double low = -3, high = 3;
  if constexpr (requires { F::sample_low, F::sample_high; }) low = F::sample_low, high = F::sample_high;
  OpSpec& spec = unary_spec(name, std::move(call), low, high);
  if constexpr (has_second_derivative<F>) spec.double_backward();
  declare_onnx<F>(spec);
  return spec;
}

}  // namespace xylem::pointwise

// Defines `Tensor function(const Tensor&)` in the current namespace from a functor type without parameters.
#define XY_POINTWISE(function, Functor)                                                    \
  ::xylem::Tensor function(const ::xylem::Tensor& x);                                      \
  namespace {                                                                              \
  const ::xylem::OpSpec& spec_of_##function = ::xylem::pointwise::spec_of<Functor>(        \
      #function, [](const ::xylem::Tensor& x) -> ::xylem::Tensor { return function(x); }); \
  }                                                                                        \
  ::xylem::Tensor function(const ::xylem::Tensor& x) {                                     \
    return ::xylem::pointwise::unary(spec_of_##function, x, Functor{});                    \
  }
