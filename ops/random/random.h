// SPDX-License-Identifier: Apache-2.0
// Kernels of the random operations. Element i of a draw uses word i % 4 of Philox block i / 4 (uniforms) or the pair of
// words around it (normals), so CPU and CUDA give the same numbers. All tensors are contiguous.
#pragma once
#include <bit>
#include <cmath>

#include "core/random/rng.h"
#include "core/tensor/tensor.h"

namespace xylem {

struct NormalPair {
  double first, second;
};

// Two independent standard normal numbers from two random words, by Box and Muller (1958). Logarithm, sine and cosine
// are series in double, good to 1e-13: free of branches, the same on host and device, and exact once rounded to float.
XY_HD NormalPair normal_pair(uint32_t a, uint32_t b) {
  // log(u) for u = (a + 1/2) / 2^32 = m 2^e with m in [sqrt(1/2), sqrt(2)): 2 atanh((m - 1) / (m + 1)).
  uint64_t bits = std::bit_cast<uint64_t>((double(a) + 0.5) * 0x1p-32) - 0x3FE6A09E667F3BCDull;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull);
  // bits is negative for u < sqrt(1/2); adding 2^62 makes the shift one of unsigned numbers.
  double e = double(int32_t((bits + (1ull << 62)) >> 52) - 1024);
  double t = (m - 1) / (m + 1), s = t * t;
  double p = 1.0 / 19;
  p = p * s + 1.0 / 17;
  p = p * s + 1.0 / 15;
  p = p * s + 1.0 / 13;
  p = p * s + 1.0 / 11;
  p = p * s + 1.0 / 9;
  p = p * s + 1.0 / 7;
  p = p * s + 1.0 / 5;
  p = p * s + 1.0 / 3;
  double radius = sqrt(-2 * (e * 0.693147180559945309417 + 2 * (t + t * s * p)));
  // The angle 2 pi b / 2^32 is a quarter turn times `quadrant` plus x in [-pi/4, pi/4).
  uint32_t quadrant = (b + 0x20000000u) >> 30;
  double x = double(int32_t(b - (quadrant << 30))) * (6.283185307179586476925 * 0x1p-32), y = x * x;
  double sine = -1.0 / 1307674368000;
  sine = sine * y + 1.0 / 6227020800;
  sine = sine * y - 1.0 / 39916800;
  sine = sine * y + 1.0 / 362880;
  sine = sine * y - 1.0 / 5040;
  sine = sine * y + 1.0 / 120;
  sine = sine * y - 1.0 / 6;
  sine = x + x * y * sine;
  double cosine = 1.0 / 20922789888000;
  cosine = cosine * y - 1.0 / 87178291200;
  cosine = cosine * y + 1.0 / 479001600;
  cosine = cosine * y - 1.0 / 3628800;
  cosine = cosine * y + 1.0 / 40320;
  cosine = cosine * y - 1.0 / 720;
  cosine = cosine * y + 1.0 / 24;
  cosine = cosine * y - 1.0 / 2;
  cosine = 1 + y * cosine;
  bool odd = quadrant & 1;
  double c = odd ? sine : cosine, d = odd ? cosine : sine;
  c *= (quadrant + 1) & 2 ? -radius : radius;
  d *= quadrant & 2 ? -radius : radius;
  return {c, d};
}

// Uniform in [0, 1) in steps that T can hold, so that nothing rounds up to 1.
template <class T>
XY_HD acc_t<T> uniform_as(uint32_t bits) {
  if constexpr (std::is_same_v<T, float16>)
    return float(bits >> 21) * 0x1p-11f;
  else if constexpr (std::is_same_v<T, bfloat16>)
    return float(bits >> 24) * 0x1p-8f;
  else
    return uniform01(bits);
}

// offset + scale * v. One rounding, spelt out: compilers may or may not fuse a product and a sum, and host and device
// must agree.
XY_HD float affine(float offset, float scale, float v) { return fmaf(scale, v, offset); }
XY_HD double affine(double offset, double scale, double v) { return fma(scale, v, offset); }

namespace cpu {
void uniform(const Tensor& t, RngKey key, double low, double high);
void normal(const Tensor& t, RngKey key, double mean, double stddev);
void dropout(const Tensor& x, const Tensor& y, RngKey key, double p);
}  // namespace cpu
namespace cuda {
void uniform(const Tensor& t, RngKey key, double low, double high);
void normal(const Tensor& t, RngKey key, double mean, double stddev);
void dropout(const Tensor& x, const Tensor& y, RngKey key, double p);
}  // namespace cuda

}  // namespace xylem
