// SPDX-License-Identifier: Apache-2.0
// Values that every rank can compute for every other, and what reductions of them give.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "distributed/group/group.h"

namespace xylem::test {

// What rank r starts with: exact in the integer types, with sums that round in the floating ones.
inline Tensor fill(int rank, int64_t n, DType t, Device device, int64_t from = 0) {
  std::vector<double> v(n);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t h = (uint64_t(rank) * 1000003 + uint64_t(from + i) + 1) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
    v[i] = t == boolean   ? double(h & 1)
           : t == u8      ? double(h % 50)
           : t == i8      ? double(h % 50) - 25
           : !is_float(t) ? double(h % 100000) - 50000
                          : double(h % 2001) / 1000 - 1;
  }
  return from_vector(v, {n}).to(t).to(device);
}

// What a reduction over n ranks gives, in rank order, rounded once at the end.
inline std::vector<double> reduced(int ranks, int64_t n, DType t, ReduceOp op, int64_t from = 0) {
  std::vector<std::vector<double>> x;
  for (int r = 0; r < ranks; ++r) x.push_back(fill(r, n, t, Device::cpu(), from).to_vector<double>());
  std::vector<double> y = x[0];
  for (int r = 1; r < ranks; ++r)
    for (int64_t i = 0; i < n; ++i) {
      double v = x[r][i];
      if (op == ReduceOp::min)
        y[i] = std::min(y[i], v);
      else if (op == ReduceOp::max)
        y[i] = std::max(y[i], v);
      else if (t == boolean)
        y[i] = std::max(y[i], v);
      else if (t == f32 || is_half(t))
        y[i] = float(y[i]) + float(v);
      else
        y[i] += v;
    }
  for (double& v : y) {
    if (op == ReduceOp::avg) v = t == f64 ? v / ranks : double(float(v) / float(ranks));
    if (t == i8) v = double(int8_t(int(v)));
    if (t == u8) v = double(uint8_t(int(v)));
  }
  return is_half(t) ? from_vector(y, {n}).to(t).to_vector<double>() : y;
}

// Over MPI to the last bit; NCCL adds in an order of its own.
inline void expect_values(const Tensor& got, const std::vector<double>& want, const std::string& what) {
  std::vector<double> values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size()) << what;
  double tolerance = !got.is_cuda() || !is_float(got.dtype()) ? 0
                     : got.dtype() == f64                     ? 1e-12
                     : got.dtype() == f32                     ? 1e-5
                     : got.dtype() == f16                     ? 1e-2
                                                              : 5e-2;
  for (size_t i = 0; i < want.size(); ++i)
    if (std::abs(values[i] - want[i]) > tolerance * (1 + std::abs(want[i]))) {
      ADD_FAILURE() << what << ": element " << i << " is " << values[i] << ", should be " << want[i];
      return;
    }
}

inline std::string label(const char* op, DType t, int64_t n, ReduceOp reduce = ReduceOp::sum) {
  const char* names[] = {"sum", "avg", "min", "max"};
  return std::string(op) + " " + names[int(reduce)] + " " + name_of(t) + " x " + std::to_string(n);
}

}  // namespace xylem::test
