// SPDX-License-Identifier: Apache-2.0
// Sizes as expressions over the dynamic dimensions.
#include <numeric>
#include <optional>

#include "models/export/trace/trace.h"

namespace xylem::exporting {
namespace {

using Values = std::array<int64_t, kTraces>;

SizeTerm term(int64_t num, int64_t den, std::vector<int> symbols) {
  const int64_t g = std::max<int64_t>(std::gcd(num, den), 1);
  return {num / g, den / g, std::move(symbols)};
}

// c = k*p + a for all traces, k with a small power of two as denominator; a = 0 when `through_zero`.
std::optional<std::pair<std::pair<int64_t, int64_t>, int64_t>> line(const Values& c, const Values& p,
                                                                    bool through_zero) {
  int64_t num = c[0], den = p[0], offset = 0;
  if (!through_zero) {
    num = c[1] - c[0], den = p[1] - p[0];
    if (den == 0) return {};
    if (den < 0) num = -num, den = -den;
  }
  const int64_t g = std::max<int64_t>(std::gcd(num, den), 1);
  num /= g, den /= g;
  if (den > 64 || (den & (den - 1)) != 0 || (num * p[0]) % den != 0 || num == 0) return {};
  if (!through_zero) offset = c[0] - num * p[0] / den;
  for (int t = 0; t < kTraces; ++t)
    if ((num * p[t]) % den != 0 || num * p[t] / den + offset != c[t]) return {};
  return std::pair(std::pair(num, den), offset);
}

}  // namespace

std::vector<SizeTerm> solve(const TracedSize& size, const std::vector<Symbol>& symbols) {
  if (size.fixed()) return {term(size.at[0], 1, {})};
  const int n = int(symbols.size());
  struct Product {
    Values values;
    std::vector<int> symbols;
  };
  std::vector<Product> products;
  for (int i = 0; i < n; ++i) products.push_back({symbols[i].values, {i}});
  for (int i = 0; i < n; ++i)
    for (int j = i; j < n; ++j) {
      Product p{symbols[i].values, {i, j}};
      for (int t = 0; t < kTraces; ++t) p.values[t] *= symbols[j].values[t];
      products.push_back(p);
    }
  for (int i = 0; i < n; ++i)
    for (int j = i + 1; j < n; ++j)
      for (int k = j + 1; k < n; ++k) {
        Product p{symbols[i].values, {i, j, k}};
        for (int t = 0; t < kTraces; ++t) p.values[t] *= symbols[j].values[t] * symbols[k].values[t];
        products.push_back(p);
      }
  for (const Product& p : products)
    if (auto fit = line(size.at, p.values, true)) return {term(fit->first.first, fit->first.second, p.symbols)};
  for (const Product& p : products) {
    if (p.symbols.size() > 1) continue;
    if (auto fit = line(size.at, p.values, false))
      return {term(fit->first.first, fit->first.second, p.symbols), term(fit->second, 1, {})};
  }
  for (int i = 0; i < n; ++i)
    for (int j = i + 1; j < n; ++j) {
      Values rest;
      for (int t = 0; t < kTraces; ++t) rest[t] = size.at[t] - symbols[i].values[t] - symbols[j].values[t];
      if (rest[0] != rest[1] || rest[1] != rest[2]) continue;
      std::vector<SizeTerm> sum{term(1, 1, {i}), term(1, 1, {j})};
      if (rest[0] != 0) sum.push_back(term(rest[0], 1, {}));
      return sum;
    }
  for (const Product& p : products)
    if (auto fit = line(size.at, p.values, false); fit && fit->first.second == 1)
      return {term(fit->first.first, 1, p.symbols), term(fit->second, 1, {})};
  return {};
}

std::string describe(const TracedSize& size, const std::vector<Symbol>& symbols) {
  std::string text;
  for (int t = 0; t < kTraces; ++t) {
    text += (t ? ", " : "") + std::to_string(size.at[t]) + " at ";
    for (size_t s = 0; s < symbols.size(); ++s)
      text += (s ? " " : "") + symbols[s].name + "=" + std::to_string(symbols[s].values[t]);
  }
  return text;
}

std::string expression(const TracedSize& size, const std::vector<Symbol>& symbols) {
  std::string text;
  for (const SizeTerm& t : solve(size, symbols)) {
    std::string part;
    for (int s : t.symbols) part += (part.empty() ? "" : "*") + symbols[s].name;
    const int64_t num = std::abs(t.num);
    if (part.empty())
      part = std::to_string(num);
    else if (num != 1)
      part = std::to_string(num) + "*" + part;
    if (t.den != 1) part += "/" + std::to_string(t.den);
    text += (text.empty() ? (t.num < 0 ? "-" : "") : (t.num < 0 ? " - " : " + ")) + part;
  }
  return text;
}

}  // namespace xylem::exporting
