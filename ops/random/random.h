// SPDX-License-Identifier: Apache-2.0
// Kernels of the random operations. Element i of a draw uses word i % 4 of Philox block i / 4 (uniforms) or the pair of
// words i / 2 (normals), so CPU and CUDA give the same numbers. All tensors are contiguous.
#pragma once
#include <cmath>

#include "core/tensor/tensor.h"
#include "core/util/rng.h"

namespace xylem {

// Standard normal number `i` of a draw, by Box-Muller in double, so that host and device round to the same float.
XY_HD double normal_at(const RngKey& key, uint64_t i) {
  Philox4 r = key(i / 2);
  double u = (double(r.v[0]) + 0.5) * 0x1p-32, v = double(r.v[1]) * 0x1p-32;
  double radius = sqrt(-2 * log(u)), angle = 6.283185307179586476925 * v;
  return radius * (i % 2 ? sin(angle) : cos(angle));
}

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
