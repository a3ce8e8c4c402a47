// SPDX-License-Identifier: Apache-2.0
// 16-bit floating point storage types, the same on host and device. Arithmetic happens in float.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define XY_HD __host__ __device__ __forceinline__
#else
#define XY_HD inline
#endif
#if defined(__F16C__) && !defined(__CUDA_ARCH__)
#include <immintrin.h>
#endif

namespace xylem {

// bfloat16: 8 exponent bits, 7 mantissa bits. Rounds to nearest even.
struct alignas(2) bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  XY_HD explicit bfloat16(float f) {
#ifdef __CUDA_ARCH__
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(f));
#else
    uint32_t u = std::bit_cast<uint32_t>(f);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t((u >> 16) | 0x40u)
                                           : uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
  }
  XY_HD operator float() const {
    uint32_t u = uint32_t(bits) << 16;
#ifdef __CUDA_ARCH__
    return __uint_as_float(u);
#else
    return std::bit_cast<float>(u);
#endif
  }
};

// IEEE binary16. Rounds to nearest even; overflow becomes infinity.
struct alignas(2) float16 {
  uint16_t bits;
  float16() = default;
  XY_HD explicit float16(float f) {
#if defined(__CUDA_ARCH__)
    bits = __half_as_ushort(__float2half_rn(f));
#elif defined(__F16C__)
    bits = static_cast<uint16_t>(_cvtss_sh(f, 0));
#else
    uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag >= 0x47800000u) {  // overflow, infinity or NaN
      bits = uint16_t(sign | (mag > 0x7f800000u ? 0x7e00u : 0x7c00u));
    } else if (mag < 0x38800000u) {  // subnormal: let the FPU round at the right place
      bits = uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(mag) + 0.5f) - 0x3f000000u));
    } else {
      bits = uint16_t(sign | ((mag + 0xc8000fffu + ((mag >> 13) & 1u)) >> 13));
    }
#endif
  }
  XY_HD operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#elif defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    uint32_t sign = uint32_t(bits & 0x8000u) << 16, mag = bits & 0x7fffu;
    if (mag >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((mag & 0x3ffu) << 13));
    if (mag < 0x400u) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(mag) * 0x1p-24f));
    return std::bit_cast<float>(sign | ((mag + 0x1c000u) << 13));
#endif
  }
};

}  // namespace xylem
