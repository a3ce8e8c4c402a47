// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers (Philox 4x32-10; Salmon et al., SC 2011). A draw is a pure function of
// (seed, step, op, element), so CPU and CUDA agree, threads do not matter, and a checkpoint stores three integers.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/device/device.h"
#include "core/tensor/half.h"

namespace xylem {

struct Philox4 {
  uint32_t v[4];
};

XY_HD Philox4 philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = uint32_t(counter_low), c1 = uint32_t(counter_low >> 32), c2 = uint32_t(counter_high),
           c3 = uint32_t(counter_high >> 32), k0 = uint32_t(key), k1 = uint32_t(key >> 32);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1), c3 = uint32_t(p0), c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in [0, 1) with 24 bits.
XY_HD float uniform01(uint32_t bits) { return float(bits >> 8) * 0x1p-24f; }

// One operation's stream of random numbers. `step` points into the memory of the device that draws, so that a
// captured graph sees the step change.
struct RngKey {
  uint64_t seed = 0;
  uint32_t op = 0;
  const uint64_t* step = nullptr;
  // Four words for elements 4*block .. 4*block+3.
  XY_HD Philox4 operator()(uint64_t block) const { return philox(seed, block, (*step << 20) ^ op); }
};

struct RngState {
  uint64_t seed = 0, step = 0;
  uint32_t op = 0;
  bool operator==(const RngState&) const = default;
};

namespace rng {
void seed(uint64_t seed);    // restarts at step 0
RngKey draw(Device device);  // the key for the next random operation of this step
void next_step();            // every training step starts with it; on the GPU it is a kernel, so graphs replay it
RngState state();
void set_state(const RngState& state);
}  // namespace rng

}  // namespace xylem
