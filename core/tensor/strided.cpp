// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/strided.h"

#include <algorithm>
#include <vector>

#include "core/util/parallel.h"

namespace xylem {

namespace {

constexpr int64_t kGrain = 16384;

}  // namespace

bool StridedPlan::contiguous() const {
  for (int k = 0; k < operands; ++k)
    if (rank > 1 || stride[k][0] != 1) return false;
  return true;
}

bool StridedPlan::packable(int lanes, const int* item_bytes) const {
  if (rank > 1 && shape[rank - 1] % lanes != 0) return false;
  for (int k = 0; k < operands; ++k) {
    int64_t inner = stride[k][rank - 1];
    if (inner == 0 && k > 0) continue;
    if (inner != 1 || reinterpret_cast<uintptr_t>(data[k]) % (uintptr_t(lanes) * item_bytes[k]) != 0) return false;
    for (int i = 0; i + 1 < rank; ++i)
      if (stride[k][i] % lanes != 0) return false;
  }
  return true;
}

StridedPlan plan_strided(std::initializer_list<const Tensor*> operands) {
  const Tensor& out = **operands.begin();
  StridedPlan p;
  p.numel = out.numel();
  p.operands = int(operands.size());
  XY_ASSERT(p.operands <= kMaxOperands);
  int order[kMaxRank], n = 0;
  for (int i = 0; i < out.rank(); ++i)
    if (out.size(i) != 1) order[n++] = i;
  // Slowest first by the output's stride, so that writes are sequential.
  std::stable_sort(order, order + n, [&](int a, int b) { return out.stride(a) > out.stride(b); });
  int64_t full[kMaxOperands][kMaxRank] = {};  // strides after broadcasting
  int k = 0;
  for (const Tensor* t : operands) {
    p.data[k] = t->raw();
    int shift = out.rank() - t->rank();
    for (int i = 0; i < t->rank(); ++i)
      if (t->size(i) != 1) full[k][i + shift] = t->stride(i);
    ++k;
  }
  for (int d = 0; d < n; ++d) {
    int64_t size = out.size(order[d]);
    bool merge = p.rank > 0;
    for (int j = 0; merge && j < p.operands; ++j) merge = p.stride[j][p.rank - 1] == full[j][order[d]] * size;
    int at = merge ? p.rank - 1 : p.rank++;
    p.shape[at] = merge ? p.shape[at] * size : size;
    for (int j = 0; j < p.operands; ++j) p.stride[j][at] = full[j][order[d]];
  }
  if (p.rank == 0) {
    p.rank = 1, p.shape[0] = 1;
    for (int j = 0; j < p.operands; ++j) p.stride[j][0] = 1;
  }
  return p;
}

void for_rows(const StridedPlan& p, StridedRow row, const void* context) {
  if (p.numel == 0) return;
  int inner = p.rank - 1;
  int64_t count = p.shape[inner], rows = p.numel / count;
  if (rows == 1) {
    parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      int64_t at[kMaxOperands];
      for (int k = 0; k < p.operands; ++k) at[k] = begin * p.stride[k][inner];
      row(context, at, end - begin);
    });
    return;
  }
  parallel_for(rows, std::max<int64_t>(1, kGrain / count), [&](int64_t begin, int64_t end) {
    int64_t index[kMaxRank] = {}, at[kMaxOperands] = {};
    int64_t rest = begin;
    for (int i = inner - 1; i >= 0; --i) {
      index[i] = rest % p.shape[i], rest /= p.shape[i];
      for (int k = 0; k < p.operands; ++k) at[k] += index[i] * p.stride[k][i];
    }
    for (int64_t r = begin; r < end; ++r) {
      row(context, at, count);
      for (int i = inner - 1; i >= 0; --i) {
        bool carry = ++index[i] == p.shape[i];
        for (int k = 0; k < p.operands; ++k) at[k] += p.stride[k][i] * (carry ? 1 - p.shape[i] : 1);
        if (!carry) break;
        index[i] = 0;
      }
    }
  });
}

}  // namespace xylem
