// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's plans: what a matrix product is to the library, and the algorithm that runs it.
#pragma once
#include <cublasLt.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "core/device/cuda.h"
#include "core/device/device.h"
#include "core/tensor/dtype.h"

namespace xylem::cuda::lt {

inline void check(cublasStatus_t status, const char* call) {
  XY_CHECK(status == CUBLAS_STATUS_SUCCESS, call, ": ", cublasLtGetStatusString(status));
}
#define XY_CUBLAS(call) ::xylem::cuda::lt::check((call), #call)

cublasLtHandle_t handle_of(Device device);
cudaDataType_t type_of(DType t);

// All that decides which kernel is best. Compared and hashed by value, so it has no padding.
struct Key {
  int64_t m, n, k, batch, lda, ldb, ldd, step_a, step_b, step_d;
  int32_t device, input, output, align_a, align_b, align_d;
  int32_t transpose_a, transpose_b, bias, accumulate, tf32, in_order;
  bool operator==(const Key& o) const { return std::memcmp(this, &o, sizeof(Key)) == 0; }
};
static_assert(std::has_unique_object_representations_v<Key>);
struct HashKey {
  size_t operator()(const Key& key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&key), sizeof(Key)});
  }
};

struct Plan {
  cublasLtMatrixLayoutOpaque_t a, b, d;
  cublasLtMatmulAlgo_t algo;
  size_t workspace;
};

// The addresses of one product, row-major.
struct Operands {
  const void *a, *b, *bias;
  void* d;
};

// The plan for a key, made at its first use. A product that takes long enough to matter is timed with the algorithms
// that cuBLASLt proposes, on these operands; the fastest is kept in a file for later programs on such a GPU. Nothing is
// timed where may_time() says no (ops/backend/choices.h): cuBLASLt's first proposal is taken then.
std::shared_ptr<const Plan> plan_for(const Key& key, const Operands& operands);

// Enqueues d = a b (+ bias), or d += a b, with `algo` and workspace of `bytes`. Returns cuBLASLt's status.
cublasStatus_t launch(const Key& key, const Plan& plan, const Operands& o, const cublasLtMatmulAlgo_t& algo,
                      void* workspace, size_t bytes);

}  // namespace xylem::cuda::lt
