// SPDX-License-Identifier: Apache-2.0
// What the operations' tests share.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/util/parallel.h"
#include "ops/ops.h"
#include "tests/support.h"

namespace xylem {

inline std::vector<Device> test_devices() {
  std::vector<Device> all = {Device::cpu()};
  if (cuda_available()) all.push_back(Device::cuda());
  return all;
}

inline std::vector<double> values(const Tensor& t) { return t.to_vector<double>(); }
inline void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << "at " << i;
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

// What f returns must not depend on how many threads compute it.
template <class F>
void expect_same_with_threads([[maybe_unused]] F&& f) {
#ifdef _OPENMP
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = f();
  omp_set_num_threads(3);
  const auto three = f();
  omp_set_num_threads(threads);
  EXPECT_EQ(one, three);
#endif
}

inline double tolerance_of(DType t) { return t == f64 ? 1e-10 : t == f32 ? 2e-5 : t == f16 ? 5e-3 : 3e-2; }

}  // namespace xylem
