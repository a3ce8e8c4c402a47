// SPDX-License-Identifier: Apache-2.0
// Histograms of activations, and the clipping thresholds that calibration draws from them.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "core/tensor/tensor.h"
#include "ops/quant/quant.h"

namespace xylem::quantize {

// Counts of |x| in equal parts of [0, 2^exponent]. The range grows by doubling, which joins neighbouring bins exactly:
// what is counted does not depend on the order, and histograms of several ranks can be added.
class Histogram {
 public:
  static constexpr int64_t kBins = 2048;

  void add(const Tensor& x);     // waits for the device; values must be finite
  void widen(int exponent);      // no-op where the range is as large already
  void add(const Histogram& o);  // widens to the larger range

  bool empty() const { return counts_.empty(); }
  int exponent() const { return exponent_; }
  double bin_width() const;
  int64_t total() const;
  const std::vector<int64_t>& counts() const { return counts_; }  // kBins of them, or none
  void set_counts(std::vector<int64_t> counts) { counts_ = std::move(counts); }

 private:
  int exponent_ = 0;
  std::vector<int64_t> counts_;
};

// Thresholds above which values are clamped, 0 for a histogram without values above 0.
// The edge of the bin up to which `percent` of the values lie.
double percentile_threshold(const Histogram& h, double percent);
// The one whose quantized distribution has the least Kullback-Leibler divergence from the clipped one, among bin edges
// from 128 bins on (Migacz, 8-bit inference with TensorRT, 2017). The bin of zeros does not take part.
double entropy_threshold(const Histogram& h);
// The one with the least mean squared error after quantization, each bin standing at its middle.
double mse_threshold(const Histogram& h, QuantFormat format);

// What amax stands for: 127, 7 or 448.
double largest_value(QuantFormat format);

}  // namespace xylem::quantize
