// SPDX-License-Identifier: Apache-2.0
// What the operations' tests share.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace xylem {

inline std::vector<Device> test_devices() {
  std::vector<Device> all = {Device::cpu()};
  if (cuda_available()) all.push_back(Device::cuda());
  return all;
}

// The largest |a - b| / (1 + |b|).
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double error = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}
inline double distance(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  return distance(a.to_vector<double>(), b.to_vector<double>());
}

// The message of the error that f throws, or "".
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline double tolerance_of(DType t) { return t == f64 ? 1e-10 : t == f32 ? 2e-5 : t == f16 ? 5e-3 : 3e-2; }

}  // namespace xylem
