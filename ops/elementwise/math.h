// SPDX-License-Identifier: Apache-2.0
// exp, log, tanh and relatives for kernels that compile for host and device. On the host the float versions are
// branch-free polynomials (minimax fits, relative error below 3e-7) that compilers vectorise; double goes to libm.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/tensor/half.h"

namespace xylem::math {

namespace detail {

inline constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

inline float power_of_two(int32_t n) { return std::bit_cast<float>(uint32_t(n + 127) << 23); }  // -126 <= n <= 127

// e^r - 1 for |r| <= ln(2)/2.
inline float expm1_core(float r) {
  float q = 0.001392617612f;
  q = q * r + 0.008363173075f;
  q = q * r + 0.04166655466f;
  q = q * r + 0.1666657703f;
  q = q * r + 0.5f;
  return r + r * r * q;
}
// x = n ln(2) + r; adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits.
inline float reduce(float x, int32_t& n) {
  float shifted = x * kLog2e + 12582912.f;
  n = int32_t(std::bit_cast<uint32_t>(shifted) - 0x4B400000u);
  float k = shifted - 12582912.f;
  return (x - k * kLn2High) - k * kLn2Low;
}

inline float exp(float x) {
  float c = x < -104.f ? -104.f : x;  // written so that NaN passes
  c = c > 89.f ? 89.f : c;
  int32_t n;
  float r = reduce(c, n);
  int32_t half = n >> 1;  // two factors reach subnormals and infinity
  return (expm1_core(r) + 1.f) * power_of_two(half) * power_of_two(n - half);
}

inline float expm1(float x) {
  float c = x < -40.f ? -40.f : x;  // written so that NaN passes
  c = c > 89.f ? 89.f : c;
  int32_t n;
  float r = reduce(c, n);
  int32_t half = n >> 1;
  float scale = power_of_two(half) * power_of_two(n - half);
  return scale * expm1_core(r) + (scale - 1.f);
}

// Special cases are added as infinity or NaN: a select would be compiled as a branch around the polynomial.
inline float log(float x) {
  uint32_t raw = std::bit_cast<uint32_t>(x);
  bool tiny = raw < 0x00800000u;                                                        // +0 and subnormals
  uint32_t bits = std::bit_cast<uint32_t>(x * (tiny ? 8388608.f : 1.f)) - 0x3F3504F3u;  // sqrt(1/2)
  int32_t exponent = int32_t(bits) >> 23;
  float t = std::bit_cast<float>((bits & 0x7FFFFFu) + 0x3F3504F3u) - 1.f;
  float k = float(exponent - (tiny ? 23 : 0));
  float q = 0.06971611471f;
  q = q * t - 0.1147973385f;
  q = q * t + 0.1168541992f;
  q = q * t - 0.1242568733f;
  q = q * t + 0.1424905765f;
  q = q * t - 0.1666780232f;
  q = q * t + 0.2000071575f;
  q = q * t - 0.2499999696f;
  q = q * t + 0.3333333118f;
  float y = k * kLn2High + (t + (t * t * (t * q - 0.5f) + k * kLn2Low));
  uint32_t special = raw > 0x7F800000u ? 0x7FC00000u : 0;  // negative or NaN
  special = raw == 0x7F800000u ? 0x7F800000u : special;    // infinity
  special = (raw << 1) == 0 ? 0xFF800000u : special;       // zero
  return y + std::bit_cast<float>(special);
}

inline float log1p(float x) {  // x > -1/2
  float u = 1.f + x;
  return log(u) - ((u - 1.f) - x) / u;
}

inline float tanh(float x) {
  float a = 2.f * (x < 0.f ? -x : x);
  a = a > 40.f ? 40.f : a;
  int32_t n;
  float r = reduce(a, n);
  float scale = power_of_two(n);
  float e = scale * expm1_core(r) + (scale - 1.f);  // e^a - 1 without cancellation
  return std::copysign(e / (e + 2.f), x);
}

inline float erf(float x) {
  float a = x < 0.f ? -x : x, u = a * a;
  float small = -0.0005648059866f;
  small = small * u + 0.004921762028f;
  small = small * u - 0.02671505423f;
  small = small * u + 0.1128031665f;
  small = small * u - 0.3761234378f;
  small = small * u + 0.1283791262f;
  float b = a > 4.f ? 4.f : a;
  float p = -1.637151415e-6f;  // -log(erfc(b)) on [1, 4]
  p = p * b + 4.605804269e-5f;
  p = p * b - 0.0005968056257f;
  p = p * b + 0.004759596293f;
  p = p * b - 0.02642113601f;
  p = p * b + 0.1100800829f;
  p = p * b + 0.6318260516f;
  p = p * b + 1.130233435f;
  p = p * b - 0.0003201380497f;
  return std::copysign(a < 1.f ? a + a * small : 1.f - exp(-p), x);
}

}  // namespace detail

#ifdef __CUDA_ARCH__
#define XY_MATH(name) \
  XY_HD float name(float x) { return ::name##f(x); }
#else
#define XY_MATH(name) \
  XY_HD float name(float x) { return detail::name(x); }
#endif
XY_MATH(exp)
XY_MATH(expm1)
XY_MATH(log)
XY_MATH(log1p)
XY_MATH(tanh)
XY_MATH(erf)
#undef XY_MATH

XY_HD double exp(double x) { return ::exp(x); }
XY_HD double expm1(double x) { return ::expm1(x); }
XY_HD double log(double x) { return ::log(x); }
XY_HD double log1p(double x) { return ::log1p(x); }
XY_HD double tanh(double x) { return ::tanh(x); }
XY_HD double erf(double x) { return ::erf(x); }
XY_HD float sqrt(float x) { return ::sqrtf(x); }
XY_HD double sqrt(double x) { return ::sqrt(x); }
XY_HD float sin(float x) { return ::sinf(x); }
XY_HD double sin(double x) { return ::sin(x); }
XY_HD float cos(float x) { return ::cosf(x); }
XY_HD double cos(double x) { return ::cos(x); }
XY_HD float pow(float x, float e) { return ::powf(x, e); }
XY_HD double pow(double x, double e) { return ::pow(x, e); }

template <class A>
XY_HD A sigmoid(A x) {
  return A(1) / (A(1) + exp(-x));
}
template <class A>
XY_HD bool is_nan(A x) {
  return x != x;
}

}  // namespace xylem::math
