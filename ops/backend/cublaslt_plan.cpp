// SPDX-License-Identifier: Apache-2.0
// Which of cuBLASLt's algorithms runs a product. Its own estimate is often right and sometimes far off, above all for
// gradients of weights, whose sums are long and whose results are small: those gain from being split.
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "core/device/device.h"
#include "core/tensor/tensor.h"
#include "core/util/warn.h"
#include "ops/backend/choices.h"
#include "ops/backend/cublaslt.h"

namespace xylem::cuda::lt {
namespace {

constexpr size_t kWorkspace = size_t(32) << 20;        // what NVIDIA advises for Hopper
constexpr size_t kSplitWorkspace = size_t(128) << 20;  // for the parts of a split sum
constexpr double kGain = 0.99;                         // what an algorithm must take of the first one's time
constexpr int kCandidates = 16;

using Candidates = std::vector<cublasLtMatmulHeuristicResult_t>;

// cuBLAS thinks in columns: our row-major d = a b is its d^T = b^T a^T. A matrix with contiguous rows is, to cuBLAS,
// its transpose with contiguous columns, so our b comes first and needs a transposition only if its columns are
// contiguous.
void init(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t rows, int64_t columns, int64_t ld, int64_t batch,
          int64_t step) {
  XY_CUBLAS(cublasLtMatrixLayoutInit(&layout, type_of(dtype), uint64_t(rows), uint64_t(columns), ld));
  int32_t count = int32_t(batch);
  XY_CUBLAS(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
  XY_CUBLAS(
      cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)));
}
void init_layouts(const Key& key, Plan& plan) {
  const DType input = DType(key.input);
  const int64_t a_rows = key.transpose_a ? key.m : key.k, a_columns = key.transpose_a ? key.k : key.m;
  const int64_t b_rows = key.transpose_b ? key.k : key.n, b_columns = key.transpose_b ? key.n : key.k;
  init(plan.a, input, a_rows, a_columns, key.lda, key.batch, key.step_a);
  init(plan.b, input, b_rows, b_columns, key.ldb, key.batch, key.step_b);
  init(plan.d, DType(key.output), key.n, key.m, key.ldd, key.batch, key.step_d);
}

void init(cublasLtMatmulDescOpaque_t& desc, const Key& key, const void* bias) {
  const DType input = DType(key.input);
  const cublasComputeType_t compute = input == f64    ? CUBLAS_COMPUTE_64F
                                      : key.tf32 != 0 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                      : CUBLAS_COMPUTE_32F;
  XY_CUBLAS(cublasLtMatmulDescInit(&desc, compute, input == f64 ? CUDA_R_64F : CUDA_R_32F));
  auto set = [&](cublasLtMatmulDescAttributes_t name, auto value) {
    XY_CUBLAS(cublasLtMatmulDescSetAttribute(&desc, name, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (!key.bias) return;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(DType(key.output)));
}

// Whether the result has so few tiles that the GPU is better used by splitting the sums.
bool is_tall(const Key& key) {
  const int64_t tiles = ((key.m + 127) / 128) * ((key.n + 255) / 256) * key.batch;
  return key.k >= 4096 && tiles < 4 * multiprocessors(Device::cuda(key.device));
}
size_t workspace_limit(const Key& key) { return is_tall(key) ? kSplitWorkspace : kWorkspace; }

// Split sums are added in the arithmetic type, never rounded to 16 bits on the way; in whatever order they arrive only
// where that is allowed.
uint32_t reductions(const Key& key) {
  const bool any_order = !key.in_order && DType(key.output) == f32;
  return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | (any_order ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0);
}

// A product as cuBLASLt is asked about it.
struct Query {
  Plan& plan;
  cublasLtMatmulDescOpaque_t desc;
  Query(const Key& key, Plan& plan, const void* bias) : plan(plan) { init(desc, key, bias); }
};

// cuBLASLt's proposals, best first by its own estimate.
Candidates proposals(const Key& key, Query& q, int count) {
  cublasLtMatmulPreferenceOpaque_t preference;
  XY_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    XY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_limit(key)));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions(key));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(key.align_b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(key.align_a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(key.align_d));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(key.align_d));
  Candidates found(static_cast<size_t>(count));
  int filled = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_of(Device::cuda(key.device)), &q.desc, &q.plan.b, &q.plan.a, &q.plan.d,
                                     &q.plan.d, &preference, count, found.data(), &filled);
  XY_CHECK(status == CUBLAS_STATUS_SUCCESS && filled > 0, "cuBLASLt has no algorithm for [", key.m, ", ", key.k,
           "] x [", key.k, ", ", key.n, "] in ", DType(key.input), " to ", DType(key.output), " (leading dimensions ",
           key.lda, ", ", key.ldb, ", ", key.ldd, "): ", cublasLtGetStatusString(status));
  found.resize(size_t(filled));
  std::erase_if(found, [](const auto& c) { return c.state != CUBLAS_STATUS_SUCCESS; });
  XY_CHECK(!found.empty(), "cuBLASLt's algorithms for [", key.m, ", ", key.k, "] x [", key.k, ", ", key.n,
           "] cannot run here");
  return found;
}

// Fills in the workspace; false where the algorithm cannot run this product.
bool usable(const Key& key, Query& q, cublasLtMatmulHeuristicResult_t& candidate) {
  cublasLtMatmulHeuristicResult_t result = {};
  cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_of(Device::cuda(key.device)), &q.desc, &q.plan.b, &q.plan.a,
                                                  &q.plan.d, &q.plan.d, &candidate.algo, &result);
  candidate.workspaceSize = result.workspaceSize;
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_limit(key);
}

// The first proposals again with their sums in several parts.
Candidates split_proposals(const Key& key, Query& q, const Candidates& from) {
  Candidates split;
  const int32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  for (size_t i = 0; i < std::min<size_t>(from.size(), 3); ++i)
    for (int32_t parts : {2, 3, 4, 6, 8, 12, 16, 22}) {
      cublasLtMatmulHeuristicResult_t c = from[i];
      if (cublasLtMatmulAlgoConfigSetAttribute(&c.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts)) !=
              CUBLAS_STATUS_SUCCESS ||
          cublasLtMatmulAlgoConfigSetAttribute(&c.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                               sizeof(scheme)) != CUBLAS_STATUS_SUCCESS ||
          !usable(key, q, c))
        continue;
      split.push_back(c);
    }
  return split;
}

// The fastest of the candidates on these operands. A result that is added to is left alone.
cublasLtMatmulHeuristicResult_t fastest(const Key& key, const Plan& plan, Operands o, const Candidates& candidates) {
  const Device device = Device::cuda(key.device);
  size_t bytes = 0;
  for (const auto& c : candidates) bytes = std::max(bytes, c.workspaceSize);
  Tensor workspace = empty({int64_t(bytes)}, u8, device), scratch;
  if (key.accumulate) {
    scratch = zeros({((key.m - 1) * key.ldd + key.n) * int64_t(size_of(DType(key.output)))}, u8, device);
    o.d = scratch.raw();
  }
  const auto* best = &candidates[0];
  float shortest = INFINITY;
  for (const auto& c : candidates) {
    auto ms = time_of(device, shortest, [&] {
      return launch(key, plan, o, c.algo, bytes ? workspace.raw() : nullptr, c.workspaceSize) == CUBLAS_STATUS_SUCCESS;
    });
    if (!ms || *ms >= shortest) continue;
    // Where the times hardly differ, the library's own choice stays.
    shortest = &c == &candidates[0] ? *ms * float(kGain) : *ms;
    best = &c;
  }
  return *best;
}

// ---- choices of earlier programs ------------------------------------------------------------------------------------

CacheFile& file_of(int device) {
  return kept_choices("gemm-cublaslt-" + std::to_string(cublasLtGetVersion()), Device::cuda(device));
}

std::string text_of(const Key& key) {
  std::ostringstream text;
  for (int64_t v : {key.m, key.n, key.k, key.batch, key.lda, key.ldb, key.ldd, key.step_a, key.step_b, key.step_d})
    text << v << ' ';
  for (int32_t v : {key.align_a, key.align_b, key.align_d, key.transpose_a, key.transpose_b, key.bias, key.accumulate,
                    key.tf32, key.in_order})
    text << v << ' ';
  text << DType(key.input) << ' ' << DType(key.output);
  return text.str();
}
std::string text_of(const cublasLtMatmulAlgo_t& algo) {
  std::ostringstream text;
  for (uint64_t word : algo.data) text << std::hex << word << ' ';
  return text.str();
}
std::optional<cublasLtMatmulHeuristicResult_t> parse(const Key& key, Query& q, const std::string& text) {
  cublasLtMatmulHeuristicResult_t c = {};
  std::istringstream in(text);
  for (uint64_t& word : c.algo.data) in >> std::hex >> word;
  if (in && usable(key, q, c)) return c;
  warn_once("a kept choice of matrix product cannot be used and is made again for this program");
  return {};
}

double flops(const Key& key) { return 2.0 * double(key.m) * double(key.n) * double(key.k) * double(key.batch); }

cublasLtMatmulHeuristicResult_t choose(const Key& key, Query& q, const Operands& o) {
  const bool one_result = key.batch == 1 || !key.accumulate;
  if (!one_result || !worth_timing(flops(key))) return proposals(key, q, 1)[0];
  CacheFile& file = file_of(key.device);
  const std::string name = text_of(key);
  if (auto kept = file.find(name))
    if (auto choice = parse(key, q, *kept)) return *choice;
  if (!may_time(Device::cuda(key.device))) return proposals(key, q, 1)[0];
  Candidates candidates = proposals(key, q, kCandidates);
  if (is_tall(key))
    for (const auto& c : split_proposals(key, q, candidates)) candidates.push_back(c);
  auto choice = fastest(key, q.plan, o, candidates);
  // Ranks and programs that share the file agree on one choice.
  const std::string mine = text_of(choice.algo), kept = file.keep(name, mine);
  if (kept == mine) return choice;
  return parse(key, q, kept).value_or(choice);
}

}  // namespace

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

std::shared_ptr<const Plan> plan_for(const Key& key, const Operands& operands) {
  static std::mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Plan>, HashKey> plans;
  std::lock_guard lock(mutex);
  auto& kept = plans[key];
  if (!kept) {
    auto plan = std::make_shared<Plan>();
    init_layouts(key, *plan);
    Query query(key, *plan, operands.bias);
    auto choice = choose(key, query, operands);
    plan->algo = choice.algo;
    plan->workspace = choice.workspaceSize;
    kept = std::move(plan);
  }
  return kept;
}

cublasStatus_t launch(const Key& key, const Plan& plan, const Operands& o, const cublasLtMatmulAlgo_t& algo,
                      void* workspace, size_t bytes) {
  const Device device = Device::cuda(key.device);
  cublasLtMatmulDescOpaque_t desc;
  init(desc, key, o.bias);
  // The library takes layouts it does not change by pointers to what is not constant.
  auto &a = const_cast<cublasLtMatrixLayoutOpaque_t&>(plan.a), &b = const_cast<cublasLtMatrixLayoutOpaque_t&>(plan.b),
       &d = const_cast<cublasLtMatrixLayoutOpaque_t&>(plan.d);
  const double alpha64 = 1, beta64 = key.accumulate;
  const float alpha32 = 1, beta32 = float(key.accumulate);
  const bool wide = DType(key.input) == f64;
  return cublasLtMatmul(handle_of(device), &desc, wide ? static_cast<const void*>(&alpha64) : &alpha32, o.b, &b, o.a,
                        &a, wide ? static_cast<const void*>(&beta64) : &beta32, o.d, &d, o.d, &d, &algo, workspace,
                        bytes, cuda_stream(device));
}

}  // namespace xylem::cuda::lt
