// SPDX-License-Identifier: Apache-2.0
#include "models/quantize/observer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace xylem::quantize {
namespace {

constexpr int64_t kLevels = 128;  // magnitudes of a signed 8-bit number

int64_t last_used(const std::vector<int64_t>& counts) {
  int64_t last = -1;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) last = int64_t(i);
  return last;
}

// sum p log(p / q) with p the first `n` bins, what lies above added to the last of them, and q the same bins after
// quantization to kLevels: each level's count spread evenly over its bins that are not empty.
double divergence(const std::vector<double>& counts, int64_t n, double above) {
  std::vector<double> p(counts.begin(), counts.begin() + n), q(static_cast<size_t>(n));
  for (int64_t level = 0; level < kLevels; ++level) {
    int64_t begin = level * n / kLevels, end = (level + 1) * n / kLevels, used = 0;
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += counts[size_t(i)], used += counts[size_t(i)] > 0;
    for (int64_t i = begin; i < end; ++i)
      if (counts[size_t(i)] > 0) q[size_t(i)] = sum / double(used);
  }
  p[size_t(n - 1)] += above;
  double p_sum = std::accumulate(p.begin(), p.end(), 0.0), q_sum = std::accumulate(q.begin(), q.end(), 0.0), total = 0;
  if (q_sum == 0) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    // Where only clipped values fall, q is 0 and the divergence infinite: taken as one small probability.
    double pi = p[i] / p_sum, qi = q[i] > 0 ? q[i] / q_sum : 1e-9;
    total += pi * std::log(pi / qi);
  }
  return total;
}

double e4m3(double v) {  // of 0 <= v <= 448
  double step = std::ldexp(1.0, std::max(v > 0 ? std::ilogb(v) : -6, -6) - 3);
  return std::nearbyint(v / step) * step;
}

}  // namespace

double largest_value(QuantFormat format) {
  return format == QuantFormat::fp8 ? 448 : format == QuantFormat::int4 ? 7 : 127;
}

double Histogram::bin_width() const { return std::ldexp(1.0, exponent_) / double(kBins); }
int64_t Histogram::total() const { return std::accumulate(counts_.begin(), counts_.end(), int64_t(0)); }

void Histogram::widen(int exponent) {
  if (counts_.empty()) exponent_ = exponent, counts_.assign(kBins, 0);
  for (; exponent_ < exponent; ++exponent_) {
    for (size_t i = 0; i < kBins / 2; ++i) counts_[i] = counts_[2 * i] + counts_[2 * i + 1];
    std::fill(counts_.begin() + kBins / 2, counts_.end(), 0);
  }
}

void Histogram::add(const Tensor& x) {
  if (x.numel() == 0) return;
  double top = abs_max(x).item();
  XY_CHECK(std::isfinite(top), "calibration met a value that is not finite: ", top);
  int exponent = top > 0 ? std::max(std::ilogb(top) + 1, -100) : -100;
  widen(exponent);
  auto fresh = abs_histogram(x, std::ldexp(1.0, exponent_), kBins).to_vector<int64_t>();
  for (size_t i = 0; i < fresh.size(); ++i) counts_[i] += fresh[i];
}

void Histogram::add(const Histogram& o) {
  if (o.empty()) return;
  Histogram other = o;
  widen(o.exponent_);
  other.widen(exponent_);
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
}

double percentile_threshold(const Histogram& h, double percent) {
  double wanted = percent / 100 * double(h.total()), seen = 0;
  int64_t last = last_used(h.counts());
  for (int64_t i = 0; i <= last; ++i) {
    seen += double(h.counts()[size_t(i)]);
    if (seen >= wanted) return double(i + 1) * h.bin_width();
  }
  return double(last + 1) * h.bin_width();
}

double entropy_threshold(const Histogram& h) {
  int64_t last = last_used(h.counts());
  if (last < 0) return 0;
  std::vector<double> counts(h.counts().begin(), h.counts().end());
  counts[0] = counts[1];  // zeros (of relu) are exact at any scale
  double best = std::numeric_limits<double>::infinity(), above = 0;
  int64_t chosen = last + 1;
  for (int64_t i = kLevels; i <= last; ++i) above += counts[size_t(i)];
  for (int64_t n = kLevels, step = 8; n <= last + 1; n += step) {
    double d = divergence(counts, n, above);
    if (d < best) best = d, chosen = n;
    for (int64_t i = n; i < std::min(n + step, last + 1); ++i) above -= counts[size_t(i)];
  }
  return double(chosen) * h.bin_width();
}

double mse_threshold(const Histogram& h, QuantFormat format) {
  int64_t last = last_used(h.counts());
  if (last < 0) return 0;
  double best = std::numeric_limits<double>::infinity(), chosen = 0, width = h.bin_width();
  constexpr int kTrials = 100;
  for (int trial = 1; trial <= kTrials; ++trial) {
    double threshold = double(last + 1) * width * trial / kTrials, scale = threshold / largest_value(format), error = 0;
    for (int64_t i = 0; i <= last; ++i) {
      if (h.counts()[size_t(i)] == 0) continue;
      double v = (double(i) + 0.5) * width, q = std::min(v / scale, largest_value(format));
      double d = v - (format == QuantFormat::fp8 ? e4m3(q) : std::nearbyint(q)) * scale;
      error += double(h.counts()[size_t(i)]) * d * d;
    }
    if (error < best) best = error, chosen = threshold;
  }
  return chosen;
}

}  // namespace xylem::quantize
