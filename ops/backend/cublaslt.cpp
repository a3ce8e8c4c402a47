// SPDX-License-Identifier: Apache-2.0
// Matrix products on the GPU. cuBLASLt's choice for a problem is made once and kept; a call then only enqueues work, so
// it can be captured in a CUDA graph. Workspace comes from our allocator for the length of a call.
#include <cublasLt.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/device/cuda.h"
#include "ops/matmul/matmul.h"

namespace xylem::cuda {
namespace {

constexpr size_t kMaxWorkspace = size_t(32) << 20;  // what NVIDIA advises for Hopper

void check(cublasStatus_t status, const char* call) {
  XY_CHECK(status == CUBLAS_STATUS_SUCCESS, call, ": ", cublasLtGetStatusString(status));
}
#define XY_CUBLAS(call) check((call), #call)

cublasLtHandle_t handle_of(Device device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;  // live until the process ends
  std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device.index];
  if (!handle) XY_CUBLAS(cublasLtCreate(&handle));
  return handle;
}

cudaDataType_t type_of(DType t) {
  switch (t) {
    case f64:
      return CUDA_R_64F;
    case f32:
      return CUDA_R_32F;
    case f16:
      return CUDA_R_16F;
    case bf16:
      return CUDA_R_16BF;
    default:
      XY_FAIL("no matrix products in ", t);
  }
}

// All that decides which kernel is best. Compared and hashed by value, so it has no padding.
struct Key {
  int64_t m, n, k, batch, lda, ldb, ldd, step_a, step_b, step_d;
  int32_t device, input, output, align_a, align_b, align_d;
  int32_t transpose_a, transpose_b, bias, accumulate, tf32, unused = 0;
  bool operator==(const Key& o) const { return std::memcmp(this, &o, sizeof(Key)) == 0; }
};
static_assert(std::has_unique_object_representations_v<Key>);
struct HashKey {
  size_t operator()(const Key& key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&key), sizeof(Key)});
  }
};

template <class T, cublasStatus_t (*Destroy)(T)>
struct Destroyer {
  using pointer = T;
  void operator()(T object) const { Destroy(object); }
};
using MatmulDesc = std::unique_ptr<void, Destroyer<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<void, Destroyer<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<void, Destroyer<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

struct Plan {
  Layout a, b, d;
  cublasLtMatmulAlgo_t algo;
  size_t workspace = 0;
};

// cuBLAS thinks in columns: our row-major d = a b is its d^T = b^T a^T. A matrix with contiguous rows is, to cuBLAS,
// its transpose with contiguous columns, so our b comes first and needs a transposition only if its columns are
// contiguous.
Layout make_layout(DType dtype, int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t step) {
  cublasLtMatrixLayout_t raw;
  XY_CUBLAS(cublasLtMatrixLayoutCreate(&raw, type_of(dtype), uint64_t(rows), uint64_t(columns), ld));
  Layout layout(raw);
  int32_t count = int32_t(batch);
  XY_CUBLAS(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
  XY_CUBLAS(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)));
  return layout;
}

MatmulDesc make_desc(const Key& key, const void* bias) {
  DType input = DType(key.input);
  cublasComputeType_t compute = input == f64    ? CUBLAS_COMPUTE_64F
                                : key.tf32 != 0 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t raw;
  XY_CUBLAS(cublasLtMatmulDescCreate(&raw, compute, input == f64 ? CUDA_R_64F : CUDA_R_32F));
  MatmulDesc desc(raw);
  auto set = [&](cublasLtMatmulDescAttributes_t name, auto value) {
    XY_CUBLAS(cublasLtMatmulDescSetAttribute(raw, name, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(DType(key.output)));
  }
  return desc;
}

std::shared_ptr<const Plan> make_plan(const Key& key, const MatmulDesc& desc) {
  auto plan = std::make_shared<Plan>();
  DType input = DType(key.input), output = DType(key.output);
  plan->a = key.transpose_a ? make_layout(input, key.m, key.k, key.lda, key.batch, key.step_a)
                            : make_layout(input, key.k, key.m, key.lda, key.batch, key.step_a);
  plan->b = key.transpose_b ? make_layout(input, key.k, key.n, key.ldb, key.batch, key.step_b)
                            : make_layout(input, key.n, key.k, key.ldb, key.batch, key.step_b);
  plan->d = make_layout(output, key.n, key.m, key.ldd, key.batch, key.step_d);
  cublasLtMatmulPreference_t raw;
  XY_CUBLAS(cublasLtMatmulPreferenceCreate(&raw));
  Preference preference(raw);
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    XY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(raw, name, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kMaxWorkspace));
  // Split sums are added in the arithmetic type, never rounded to 16 bits on the way.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(key.align_b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(key.align_a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(key.align_d));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(key.align_d));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_of(Device::cuda(key.device)), desc.get(), plan->b.get(), plan->a.get(),
                                     plan->d.get(), plan->d.get(), raw, 1, &result, &found);
  XY_CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0, "cuBLASLt has no algorithm for [", key.m, ", ", key.k, "] x [",
           key.k, ", ", key.n, "] in ", input, " to ", output, " (leading dimensions ", key.lda, ", ", key.ldb, ", ",
           key.ldd, "): ", cublasLtGetStatusString(status));
  plan->algo = result.algo;
  plan->workspace = result.workspaceSize;
  return plan;
}

std::shared_ptr<const Plan> plan_for(const Key& key, const MatmulDesc& desc) {
  static std::mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Plan>, HashKey> plans;
  std::lock_guard lock(mutex);
  auto& plan = plans[key];
  if (!plan) plan = make_plan(key, desc);
  return plan;
}

// The largest power of two, up to 256, that divides every address the operand is read from.
int32_t alignment(const Gemm::Operand& o, int64_t outer) {
  uint64_t bits = reinterpret_cast<uintptr_t>(o.data) | 256;
  if (outer > 1) bits |= uint64_t(o.step[0]) * size_of(o.dtype);
  return int32_t(bits & (~bits + 1));
}

}  // namespace

void run_gemm(const Gemm& g, Device device) {
  Key key = {.m = g.m,
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
             .tf32 = g.a.dtype == f32 && allow_tf32()};
  MatmulDesc desc = make_desc(key, g.bias);
  std::shared_ptr<const Plan> plan = plan_for(key, desc);
  Tensor workspace = empty({int64_t(plan->workspace)}, u8, device);
  double alpha64 = 1, beta64 = g.accumulate;
  float alpha32 = 1, beta32 = g.accumulate;
  const void* alpha = g.a.dtype == f64 ? static_cast<const void*>(&alpha64) : &alpha32;
  const void* beta = g.a.dtype == f64 ? static_cast<const void*>(&beta64) : &beta32;
  auto at = [](const Gemm::Operand& o, int64_t i) {
    return static_cast<char*>(o.data) + i * o.step[0] * int64_t(size_of(o.dtype));
  };
  for (int64_t i = 0; i < g.batch[0]; ++i)
    XY_CUBLAS(cublasLtMatmul(handle_of(device), desc.get(), alpha, at(g.b, i), plan->b.get(), at(g.a, i), plan->a.get(),
                             beta, at(g.d, i), plan->d.get(), at(g.d, i), plan->d.get(), &plan->algo,
                             plan->workspace ? workspace.raw() : nullptr, plan->workspace, cuda_stream(device)));
}

}  // namespace xylem::cuda
