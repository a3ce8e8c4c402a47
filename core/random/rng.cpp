// SPDX-License-Identifier: Apache-2.0
#include "core/random/rng.h"

#include "core/tensor/tensor.h"
#include "core/util/check.h"

namespace xylem {
namespace cuda {
void set_step(const Tensor& counter, uint64_t step);
void increment_step(const Tensor& counter);
}  // namespace cuda

namespace {

struct Generator {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t op = 0;
  Tensor on_gpu[16];  // i64 [1]: the step again, where kernels can read it
};
Generator& generator() {
  static auto* g = new Generator;
  return *g;
}

#ifdef XY_WITH_CUDA
const Tensor& gpu_step(Device device) {
  Tensor& t = generator().on_gpu[device.index];
  if (!t.defined()) {
    t = empty({1}, i64, device);
    cuda::set_step(t, generator().step);
  }
  return t;
}
#endif

}  // namespace

namespace rng {

void seed(uint64_t seed) { set_state({seed, 0, 0}); }

RngKey draw(Device device) {
  Generator& g = generator();
  XY_CHECK(g.op < (1u << 20),
           "more than 2^20 random operations in one step; call xylem::rng::next_step() between steps");
  RngKey key{g.seed, g.op++, &g.step};
#ifdef XY_WITH_CUDA
  if (device.is_cuda()) key.step = reinterpret_cast<const uint64_t*>(gpu_step(device).raw());
#else
  (void)device;
#endif
  return key;
}

void next_step() {
  Generator& g = generator();
  ++g.step;
  g.op = 0;
#ifdef XY_WITH_CUDA
  for (Tensor& t : g.on_gpu)
    if (t.defined()) cuda::increment_step(t);
#endif
}

RngState state() {
  const Generator& g = generator();
  return {g.seed, g.step, g.op};
}

void set_state(const RngState& s) {
  Generator& g = generator();
  g.seed = s.seed;
  g.op = s.op;
  // Recomputation restores states of the running step; only a real jump touches the device.
  if (g.step == s.step) return;
  g.step = s.step;
#ifdef XY_WITH_CUDA
  for (Tensor& t : g.on_gpu)
    if (t.defined()) cuda::set_step(t, s.step);
#endif
}

}  // namespace rng
}  // namespace xylem
