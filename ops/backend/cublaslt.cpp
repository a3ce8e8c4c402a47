// SPDX-License-Identifier: Apache-2.0
// Matrix products on the GPU. A call enqueues work and nothing else, so it can be captured in a CUDA graph. Workspace
// comes from our allocator for the length of a call.
#include "ops/backend/cublaslt.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include "core/device/cuda.h"
#include "core/util/determinism.h"
#include "ops/matmul/matmul.h"

namespace xylem::cuda {
namespace {

// The largest power of two, up to 256, that divides every address the operand is read from.
int32_t alignment(const Gemm::Operand& o, int64_t outer) {
  uint64_t bits = reinterpret_cast<uintptr_t>(o.data) | 256;
  if (outer > 1) bits |= uint64_t(o.step[0]) * size_of(o.dtype);
  return int32_t(bits & (~bits + 1));
}

}  // namespace

void run_gemm(const Gemm& g, Device device) {
  lt::Key key = {.m = g.m,
                 .n = g.n,
                 .k = g.k,
                 .batch = g.batch[1],
                 .lda = g.a.ld,
                 .ldb = g.b.ld,
                 .ldd = g.d.ld,
                 .step_a = g.a.step[1],
                 .step_b = g.b.step[1],
                 .step_d = g.d.step[1],
                 .device = device.index,
                 .input = int32_t(g.a.dtype),
                 .output = int32_t(g.d.dtype),
                 .align_a = alignment(g.a, g.batch[0]),
                 .align_b = alignment(g.b, g.batch[0]),
                 .align_d = alignment(g.d, g.batch[0]),
                 .transpose_a = g.a.transposed,
                 .transpose_b = g.b.transposed,
                 .bias = g.bias != nullptr,
                 .accumulate = g.accumulate,
                 .tf32 = g.a.dtype == f32 && allow_tf32(),
                 .in_order = deterministic()};
  auto at = [](const Gemm::Operand& o, int64_t i) {
    return static_cast<char*>(o.data) + i * o.step[0] * int64_t(size_of(o.dtype));
  };
  auto operands = [&](int64_t i) { return lt::Operands{at(g.a, i), at(g.b, i), g.bias, at(g.d, i)}; };
  std::shared_ptr<const lt::Plan> plan = lt::plan_for(key, operands(0));
  Tensor workspace = empty({int64_t(plan->workspace)}, u8, device);
  void* scratch = plan->workspace ? workspace.raw() : nullptr;
  for (int64_t i = 0; i < g.batch[0]; ++i)
    XY_CUBLAS(lt::launch(key, *plan, operands(i), plan->algo, scratch, plan->workspace));
}

}  // namespace xylem::cuda
