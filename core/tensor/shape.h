// SPDX-License-Identifier: Apache-2.0
// Shapes and strides: up to eight dimensions, held inline.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/util/check.h"

namespace xylem {

inline constexpr int kMaxRank = 8;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  Shape(const std::vector<int64_t>& dims) : Shape(std::span<const int64_t>(dims)) {}
  Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    XY_CHECK(dims.size() <= kMaxRank, "a tensor has at most ", kMaxRank, " dimensions, not ", dims.size());
    std::copy(dims.begin(), dims.end(), dims_);
  }
  static Shape filled(int rank, int64_t value) {
    Shape s;
    for (int i = 0; i < rank; ++i) s.push_back(value);
    return s;
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t& operator[](int i) { return dims_[i]; }
  const int64_t* begin() const { return dims_; }
  const int64_t* end() const { return dims_ + rank_; }
  int64_t* begin() { return dims_; }
  int64_t* end() { return dims_ + rank_; }
  int64_t back() const { return dims_[rank_ - 1]; }
  void push_back(int64_t d) {
    XY_CHECK(rank_ < kMaxRank, "a tensor has at most ", kMaxRank, " dimensions");
    dims_[rank_++] = d;
  }
  void insert(int at, int64_t d) {
    push_back(d);
    std::rotate(dims_ + at, dims_ + rank_ - 1, dims_ + rank_);
  }
  void erase(int at) {
    std::copy(dims_ + at + 1, dims_ + rank_, dims_ + at);
    --rank_;
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : *this) n *= d;
    return n;
  }
  bool operator==(const Shape& o) const { return rank_ == o.rank_ && std::equal(begin(), end(), o.begin()); }
  std::vector<int64_t> vec() const { return {begin(), end()}; }
  std::string str() const;  // "[2, 3]"

 private:
  int64_t dims_[kMaxRank] = {};
  int rank_ = 0;
};
using Strides = Shape;  // in elements

inline std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.str(); }
Strides contiguous_strides(const Shape& shape);

// The shape two operands broadcast to (NumPy rules: aligned at the right, a 1 stretches). Throws naming both shapes.
Shape broadcast(const Shape& a, const Shape& b);

}  // namespace xylem
