// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/sizes.h"

#include <algorithm>

#include "core/util/check.h"

namespace xylem {

std::map<std::string, DimRange> complete_ranges(const std::vector<ExportInput>& inputs,
                                                const std::map<std::string, DimRange>& given) {
  std::map<std::string, DimRange> ranges = given;
  for (const ExportInput& in : inputs)
    for (const auto& [dim, symbol] : in.dynamic) {
      int64_t size = in.example.size(dim);
      ranges.try_emplace(symbol, DimRange{.min = symbol == "past" ? 0 : 1, .opt = size, .max = 4 * size});
    }
  // A mask over the cache and the new tokens is as long as both.
  if (ranges.contains("past") && ranges.contains("seq") && ranges.contains("total")) {
    const DimRange &past = ranges["past"], &seq = ranges["seq"];
    ranges["total"] = {.min = past.min + seq.min, .opt = past.opt + seq.opt, .max = past.max + seq.max};
  }
  for (const auto& [symbol, r] : ranges)
    XY_CHECK(0 <= r.min && r.min <= r.opt && r.opt <= r.max && r.max > 0, "the range of '", symbol, "' is ", r.min,
             ", ", r.opt, ", ", r.max, "; it must ascend from the smallest to the largest size");
  return ranges;
}

std::vector<Sizes> checked_sizes(const std::vector<ExportInput>& inputs, const std::map<std::string, DimRange>& given) {
  std::map<std::string, DimRange> ranges = complete_ranges(inputs, given);
  Sizes min, opt, odd, max;
  for (const auto& [symbol, r] : ranges) {
    min[symbol] = r.min;
    opt[symbol] = r.opt;
    max[symbol] = r.max;
    odd[symbol] = std::clamp((r.min + r.opt) / 2 | 1, r.min, r.max);
  }
  std::vector<Sizes> all;
  for (Sizes s : {min, opt, odd, max}) {
    for (auto& [symbol, size] : s)
      size = (size + ranges[symbol].multiple - 1) / ranges[symbol].multiple * ranges[symbol].multiple;
    if (s.contains("past") && s.contains("seq") && s.contains("total")) s["total"] = s["past"] + s["seq"];
    if (std::find(all.begin(), all.end(), s) == all.end()) all.push_back(s);
  }
  return all;
}

Tensors random_inputs(const std::vector<ExportInput>& inputs, const Sizes& sizes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  Tensors out;
  for (const ExportInput& in : inputs) {
    std::vector<int64_t> shape(in.example.shape().begin(), in.example.shape().end());
    for (const auto& [dim, symbol] : in.dynamic) shape[size_t(dim)] = sizes.at(symbol);
    Tensor pool = in.example.detach().to(Device::cpu()).contiguous();
    Tensor t = empty(Shape(std::span<const int64_t>(shape)), pool.dtype());
    size_t size = size_of(pool.dtype());
    XY_CHECK(pool.numel() > 0 || t.numel() == 0, "the example of input '", in.name,
             "' is empty: there is nothing to draw values from");
    char* to = static_cast<char*>(t.raw());
    const char* from = static_cast<const char*>(pool.raw());
    for (int64_t i = 0; i < t.numel(); ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      int64_t pick = int64_t((state >> 33) % uint64_t(pool.numel()));
      std::copy_n(from + size_t(pick) * size, size, to + size_t(i) * size);
    }
    out.push_back(t.to(in.example.device()));
  }
  return out;
}

}  // namespace xylem
