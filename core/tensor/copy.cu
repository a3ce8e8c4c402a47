// SPDX-License-Identifier: Apache-2.0
#include "core/device/fault.h"
#include "core/device/kernel.cuh"
#include "core/tensor/copy.h"
#include "core/tensor/strided.h"

namespace xylem::cuda {
namespace {

constexpr int kBlock = 256;

__device__ void locate(const StridedPlan& p, int64_t i, int64_t& d, int64_t& s) {
  d = s = 0;
  for (int k = p.rank - 1; k >= 0; --k) {
    int64_t at = i % p.shape[k];
    i /= p.shape[k];
    d += at * p.stride[0][k], s += at * p.stride[1][k];
  }
}

// Applies f(dst, src) to every pair of elements.
template <class D, class S, class F>
__global__ void pairwise(D* dst, const S* src, StridedPlan p, F f) {
  int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.numel; i += step) {
    int64_t d = i, s = i;
    if (!(p.rank == 1 && p.stride[0][0] == 1 && p.stride[1][0] == 1)) locate(p, i, d, s);
    f(dst[d], src[s]);
  }
}

template <class D, class S, class F>
void launch(const Tensor& dst, const Tensor& src, F f) {
  StridedPlan p = plan_strided({&dst, &src});
  if (p.numel == 0) return;
  pairwise<<<grid_for(p.numel, kBlock, dst.device()), kBlock, 0, cuda_stream(dst.device())>>>(
      static_cast<D*>(dst.raw()), static_cast<const S*>(src.raw()), p, f);
  XY_CUDA(cudaGetLastError());
}

struct Move {
  template <class T>
  __device__ void operator()(T& d, const T& s) const {
    d = s;
  }
};
struct Cast {
  template <class D, class S>
  __device__ void operator()(D& d, const S& s) const {
    d = D(static_cast<acc_t<S>>(s));
  }
};
struct Accumulate {
  double scale;
  template <class D, class S>
  __device__ void operator()(D& d, const S& s) const {
    using A = acc_t<D>;
    d = D(A(d) + A(scale) * A(static_cast<acc_t<S>>(s)));
  }
};

// One kernel for every cast that involves an integer or bool: the types are run-time values, equal for all threads.
__device__ double load_any(const void* p, int64_t i, DType t, int64_t& whole) {
  switch (t) {
    case DType::f64:
      return static_cast<const double*>(p)[i];
    case DType::f32:
      return static_cast<const float*>(p)[i];
    case DType::f16:
      return float(static_cast<const float16*>(p)[i]);
    case DType::bf16:
      return float(static_cast<const bfloat16*>(p)[i]);
    case DType::i64:
      whole = static_cast<const int64_t*>(p)[i];
      break;
    case DType::i32:
      whole = static_cast<const int32_t*>(p)[i];
      break;
    case DType::i8:
      whole = static_cast<const int8_t*>(p)[i];
      break;
    default:
      whole = static_cast<const uint8_t*>(p)[i];
      break;
  }
  return double(whole);
}
__global__ void cast_any(void* dst, DType dt, const void* src, DType st, bool integral, StridedPlan p) {
  int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.numel; i += step) {
    int64_t d, s, whole = 0;
    locate(p, i, d, s);
    double v = load_any(src, s, st, whole);
    if (!integral) whole = int64_t(v);
    switch (dt) {
      case DType::f64:
        static_cast<double*>(dst)[d] = v;
        break;
      case DType::f32:
        static_cast<float*>(dst)[d] = float(v);
        break;
      case DType::f16:
        static_cast<float16*>(dst)[d] = float16(float(v));
        break;
      case DType::bf16:
        static_cast<bfloat16*>(dst)[d] = bfloat16(float(v));
        break;
      case DType::i64:
        static_cast<int64_t*>(dst)[d] = whole;
        break;
      case DType::i32:
        static_cast<int32_t*>(dst)[d] = int32_t(whole);
        break;
      case DType::i8:
        static_cast<int8_t*>(dst)[d] = int8_t(whole);
        break;
      case DType::u8:
        static_cast<uint8_t*>(dst)[d] = uint8_t(whole);
        break;
      case DType::boolean:
        static_cast<bool*>(dst)[d] = v != 0;
        break;
    }
  }
}

template <class T>
struct Set {
  T value;
  __device__ void operator()(T& d, const T&) const { d = value; }
};

}  // namespace

void copy(const Tensor& dst, const Tensor& src) {
  if (dst.dtype() == src.dtype()) {
    if (plan_strided({&dst, &src}).contiguous()) {
      if (dst.nbytes() > 0)
        XY_CUDA(
            cudaMemcpyAsync(dst.raw(), src.raw(), dst.nbytes(), cudaMemcpyDeviceToDevice, cuda_stream(dst.device())));
      return;
    }
    switch (size_of(dst.dtype())) {
      case 1:
        return launch<uint8_t, uint8_t>(dst, src, Move{});
      case 2:
        return launch<uint16_t, uint16_t>(dst, src, Move{});
      case 4:
        return launch<uint32_t, uint32_t>(dst, src, Move{});
      default:
        return launch<uint64_t, uint64_t>(dst, src, Move{});
    }
  }
  if (is_float(dst.dtype()) && is_float(src.dtype())) {
    visit_float(dst.dtype(), [&](auto d) {
      visit_float(src.dtype(),
                  [&](auto s) { launch<typename decltype(d)::type, typename decltype(s)::type>(dst, src, Cast{}); });
    });
    return;
  }
  StridedPlan p = plan_strided({&dst, &src});
  if (p.numel == 0) return;
  cast_any<<<grid_for(p.numel, kBlock, dst.device()), kBlock, 0, cuda_stream(dst.device())>>>(
      dst.raw(), dst.dtype(), src.raw(), src.dtype(), !is_float(src.dtype()), p);
  XY_CUDA(cudaGetLastError());
}

void fill(const Tensor& dst, Scalar value) {
  if (dst.numel() == 0) return;
  if (!value.to<bool>() && dst.is_dense()) {
    XY_CUDA(cudaMemsetAsync(dst.raw(), 0, dst.nbytes(), cuda_stream(dst.device())));
    return;
  }
  visit_any(dst.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T v = value.to<T>();
    launch<T, T>(dst, dst, Set<T>{v});
  });
}

void accumulate(const Tensor& dst, const Tensor& src, double scale) {
  visit_float(dst.dtype(), [&](auto d) {
    visit_float(src.dtype(), [&](auto s) {
      launch<typename decltype(d)::type, typename decltype(s)::type>(dst, src, Accumulate{scale});
    });
  });
}

void transfer(const Tensor& dst, const Tensor& src, bool non_blocking) {
  Device device = dst.is_cuda() ? dst.device() : src.device();
  if (dst.nbytes() > 0)
    XY_CUDA(cudaMemcpyAsync(dst.raw(), src.raw(), dst.nbytes(), cudaMemcpyDefault, cuda_stream(device)));
  if (non_blocking) {
    for (const Tensor* t : {&dst, &src}) t->storage()->used_on(current_stream(device));
    return;
  }
  current_stream(device).synchronize();
  check_device_errors(device);
}

}  // namespace xylem::cuda
