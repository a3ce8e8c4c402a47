// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/tensor/dispatch.h"
#include "ops/matmul/matmul.h"

namespace xylem {
namespace {

std::atomic<bool> tf32_allowed = false;

// The last two dims of t as a matrix with a leading dimension; false when its strides need more than that.
bool describe(const Tensor& t, Gemm::Operand& o) {
  int64_t rows = t.size(-2), cols = t.size(-1), rs = t.stride(-2), cs = t.stride(-1);
  o.data = t.raw();
  o.dtype = t.dtype();
  bool row_major = (cols <= 1 || cs == 1) && (rows <= 1 || rs >= std::max<int64_t>(cols, 1));
  bool col_major = (rows <= 1 || rs == 1) && (cols <= 1 || cs >= std::max<int64_t>(rows, 1));
  if (!row_major && !col_major) return false;
  o.transposed = !row_major;
  int64_t least = std::max<int64_t>(row_major ? cols : rows, 1);
  o.ld = row_major ? (rows > 1 ? rs : least) : (cols > 1 ? cs : least);
  return true;
}

struct BatchDim {
  int64_t size, a, b, d;  // extent and the three operands' strides
};

// Batch dims with size-1 dims dropped and neighbours joined where every operand allows it.
std::vector<BatchDim> batch_dims(const Tensor& a, const Tensor& b, const Tensor& d) {
  std::vector<BatchDim> dims;
  for (int i = 0; i < d.rank() - 2; ++i) {
    BatchDim next{d.size(i), a.stride(i), b.stride(i), d.stride(i)};
    if (next.size == 1) continue;
    if (!dims.empty()) {
      BatchDim& last = dims.back();
      if (last.a == next.size * next.a && last.b == next.size * next.b && last.d == next.size * next.d) {
        last = {last.size * next.size, next.a, next.b, next.d};
        continue;
      }
    }
    dims.push_back(next);
  }
  return dims;
}

// The GPU gets one launch per index of an outer batch dimension: beyond a few, a copy is cheaper.
bool too_many(const std::vector<BatchDim>& dims, bool on_gpu) {
  return dims.size() > 2 || (on_gpu && dims.size() == 2 && dims[0].size > 8);
}

}  // namespace

void set_allow_tf32(bool allow) { tf32_allowed = allow; }
bool allow_tf32() { return tf32_allowed; }

void gemm(const Tensor& a_in, const Tensor& b_in, const Tensor& d, bool accumulate, const Tensor& bias) {
  NoGrad no_history;
  XY_ASSERT(a_in.rank() == d.rank() && b_in.rank() == d.rank() && d.rank() >= 2);
  XY_ASSERT(!(accumulate && bias.defined()));
  if (d.numel() == 0) return;
  Tensor a = a_in, b = b_in;
  Gemm g{.m = d.size(-2), .n = d.size(-1), .k = a.size(-1), .accumulate = accumulate};
  if (!describe(a, g.a)) describe(a = a.contiguous(), g.a);
  if (!describe(b, g.b)) describe(b = b.contiguous(), g.b);
  XY_ASSERT(describe(d, g.d) && !g.d.transposed, "the result's rows must be contiguous");
  std::vector<BatchDim> dims = batch_dims(a, b, d);
  if (too_many(dims, d.is_cuda())) {
    describe(a = a.contiguous(), g.a);
    describe(b = b.contiguous(), g.b);
    dims = batch_dims(a, b, d);
  }
  // Products that share b and whose rows follow one another are one taller product.
  if (!dims.empty() && !g.a.transposed) {
    BatchDim& last = dims.back();
    if (last.b == 0 && last.a == g.m * g.a.ld && last.d == g.m * g.d.ld) {
      g.m *= last.size;
      dims.pop_back();
    }
  }
  XY_ASSERT(dims.size() <= 2, "the result must be contiguous");
  for (size_t i = 0; i < dims.size(); ++i) {
    size_t level = i + 2 - dims.size();
    g.batch[level] = dims[i].size;
    g.a.step[level] = dims[i].a;
    g.b.step[level] = dims[i].b;
    g.d.step[level] = dims[i].d;
  }
  if (bias.defined()) {
    XY_ASSERT(bias.is_contiguous() && bias.dtype() == d.dtype() && bias.numel() == g.n);
    if (d.is_cuda() && d.dtype() == f64) {  // cuBLASLt's bias epilogue is for the smaller types
      d.copy_(bias.expand(d.shape()));
      g.accumulate = true;
    } else {
      g.bias = bias.raw();
    }
  }
  if (g.k == 0) {
    if (bias.defined())
      d.copy_(bias.expand(d.shape()));
    else if (!accumulate)
      d.zero_();
    return;
  }
  XY_ON_DEVICE(d, run_gemm, g, d.device());
}

void column_sum(const Tensor& x, const Tensor& out, bool accumulate) {
  XY_ASSERT(x.rank() == 2 && out.numel() == x.size(1) && out.is_contiguous());
  if (out.numel() == 0) return;
  if (x.numel() == 0) {
    if (!accumulate) out.zero_();
    return;
  }
  NoGrad no_history;
  Tensor rows = x.contiguous();
  XY_ON_DEVICE(x, run_column_sum, rows, out, accumulate);
}

}  // namespace xylem
