// SPDX-License-Identifier: Apache-2.0
// The reduction that broadcasting needs for its gradient. ops/reduce makes operations of it.
#pragma once
#include "core/tensor/tensor.h"

namespace xylem {

// A reduction of a strided tensor: for every output (kept dimensions, row-major) over all reduced elements.
// Adjacent dimensions are merged where strides allow.
struct ReducePlan {
  struct Dims {
    int rank = 0;
    int64_t numel = 1;
    int64_t shape[kMaxRank] = {}, stride[kMaxRank] = {};
  };
  Dims kept, reduced;
  // Whether neighbouring outputs are neighbours in memory (column sums) rather than neighbouring summands (row sums).
  bool columns() const {
    return kept.rank > 0 && kept.stride[kept.rank - 1] == 1 &&
           (reduced.rank == 0 || reduced.stride[reduced.rank - 1] != 1);
  }
};
ReducePlan plan_reduction(const Tensor& x, const std::vector<bool>& reduce);

enum class ReduceKind { sum, max, min };

// Calls f with the type of what can be summed.
template <class F>
void visit_summand(DType t, F&& f) {
  t == i64 ? f(Tag<int64_t>{}) : visit_float(t, f);
}

// y (contiguous, one element per output) = scale * reduction of x; 16-bit types accumulate in f32. Sums may be of i64,
// with a scale of 1. An empty max or min is refused by the caller, an empty sum is 0.
namespace cpu {
void reduce(const Tensor& x, const Tensor& y, const ReducePlan& plan, ReduceKind kind, double scale);
}
namespace cuda {
void reduce(const Tensor& x, const Tensor& y, const ReducePlan& plan, ReduceKind kind, double scale);
}

// x reduced over the marked dimensions, as a tensor of `shape`, which has one element per output. Not recorded.
Tensor reduced(const Tensor& x, const std::vector<bool>& over, const Shape& shape, ReduceKind kind, double scale);

}  // namespace xylem
