// SPDX-License-Identifier: Apache-2.0
// Kernels of the random operations. Element i of a draw comes from Philox block i / 4 (uniforms from word i % 4,
// normals from a pair of words), so CPU and CUDA give the same numbers. All tensors are contiguous.
#pragma once
#include <cmath>

#include "core/tensor/tensor.h"
#include "core/util/rng.h"

namespace xylem {

// Standard normal numbers 4*block .. 4*block+3 of a draw, by Box-Muller in double, so that host and device round to the
// same float.
XY_HD void normal4(const RngKey& key, uint64_t block, double out[4]) {
  Philox4 r = key(block);
  for (int k = 0; k < 4; k += 2) {
    double u = (double(r.v[k]) + 0.5) * 0x1p-32, v = double(r.v[k + 1]) * 0x1p-32;
    double radius = sqrt(-2 * log(u)), angle = 6.283185307179586476925 * v;
    out[k] = radius * cos(angle);
    out[k + 1] = radius * sin(angle);
  }
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
