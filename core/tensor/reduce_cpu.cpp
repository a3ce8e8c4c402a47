// SPDX-License-Identifier: Apache-2.0
// Work is cut into pieces of fixed size whose results are combined in a fixed order, so that the number of threads
// never shows in the result. Sums run in short float blocks that are added up in double; those of integers are exact.
#include <limits>

#include "core/tensor/reduce.h"
#include "core/util/lane_sum.h"
#include "core/util/parallel.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kPiece = 16384;  // summands per piece of a long row
constexpr int64_t kBlock = 512;    // float additions before the result moves to double
constexpr int64_t kColumns = 512;  // columns handled together
constexpr int64_t kRows = 1024;    // rows per piece of a tall column sum
constexpr int64_t kRowBlock = 16;  // rows added in float before the result moves to double

int64_t offset_of(const ReducePlan::Dims& d, int64_t i) {
  int64_t at = 0;
  for (int k = d.rank - 1; k >= 0; --k) at += i % d.shape[k] * d.stride[k], i /= d.shape[k];
  return at;
}

template <class S>
struct Sum {
  using State = S;
  static State start() { return 0; }
  static State join(State a, State b) { return a + b; }
  template <class T>
  static State block(const T* x, int64_t n, int64_t stride) {
    State total = 0;
    for (int64_t b = 0; b < n; b += kBlock) {
      acc_t<T> s = 0;
      int64_t end = std::min(n, b + kBlock);
      if (stride == 1) {
        s = lane_sum<acc_t<T>>(end - b, [&](int64_t i) { return static_cast<acc_t<T>>(x[b + i]); });
      } else {
        for (int64_t i = b; i < end; ++i) s += static_cast<acc_t<T>>(x[i * stride]);
      }
      total += s;
    }
    return total;
  }
};

// Max and min; a NaN wins, as in NumPy.
template <bool kMax>
struct Extremum {
  using State = double;
  static State start() {
    return kMax ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
  static State join(State a, State b) { return (kMax ? b > a : b < a) || b != b ? b : a; }
  template <class T>
  static State block(const T* x, int64_t n, int64_t stride) {
    if (stride != 1) {
      State s = start();
      for (int64_t i = 0; i < n; ++i) s = join(s, static_cast<acc_t<T>>(x[i * stride]));
      return s;
    }
    using A = acc_t<T>;
    A s = static_cast<A>(start());
    int nan = 0;
    if constexpr (kMax) {
#pragma omp simd reduction(max : s)
      for (int64_t i = 0; i < n; ++i) s = std::max(s, static_cast<A>(x[i]));
    } else {
#pragma omp simd reduction(min : s)
      for (int64_t i = 0; i < n; ++i) s = std::min(s, static_cast<A>(x[i]));
    }
#pragma omp simd reduction(| : nan)
    for (int64_t i = 0; i < n; ++i) nan |= static_cast<A>(x[i]) != static_cast<A>(x[i]);
    return nan ? std::numeric_limits<State>::quiet_NaN() : static_cast<State>(s);
  }
};

// The value of an output. Only sums of floats are scaled by anything but 1.
template <class T, class State>
T finish(State s, double scale) {
  if constexpr (std::is_integral_v<T>)
    return s;
  else
    return T(static_cast<acc_t<T>>(scale * s));
}

// All reduced elements [begin, end) of one output.
template <class Op, class T>
typename Op::State reduce_range(const T* x, const ReducePlan::Dims& d, int64_t begin, int64_t end) {
  if (d.rank == 0) return begin < end ? Op::block(x, 1, 1) : Op::start();
  int64_t inner = d.shape[d.rank - 1], stride = d.stride[d.rank - 1];
  auto s = Op::start();
  for (int64_t i = begin; i < end;) {
    int64_t n = std::min(end - i, inner - i % inner);
    s = Op::join(s, Op::block(x + offset_of(d, i), n, stride));
    i += n;
  }
  return s;
}

template <class Op, class T>
void reduce_rows(const T* x, T* y, const ReducePlan& p, double scale) {
  int64_t outputs = p.kept.numel, count = p.reduced.numel;
  int64_t pieces = std::max<int64_t>(1, (count + kPiece - 1) / kPiece);
  if (pieces == 1) {
    parallel_for(outputs, std::max<int64_t>(1, kPiece / std::max<int64_t>(count, 1)), [&](int64_t b, int64_t e) {
      for (int64_t o = b; o < e; ++o)
        y[o] = finish<T>(reduce_range<Op>(x + offset_of(p.kept, o), p.reduced, 0, count), scale);
    });
    return;
  }
  std::vector<typename Op::State> partial(outputs * pieces);
  parallel_for(outputs * pieces, 1, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      int64_t o = i / pieces, begin = i % pieces * kPiece;
      partial[i] = reduce_range<Op>(x + offset_of(p.kept, o), p.reduced, begin, std::min(count, begin + kPiece));
    }
  });
  for (int64_t o = 0; o < outputs; ++o) {
    auto s = Op::start();
    for (int64_t i = 0; i < pieces; ++i) s = Op::join(s, partial[o * pieces + i]);
    y[o] = finish<T>(s, scale);
  }
}

// state[c] = join over rows [begin, end) of x at columns c .. c+n, which are adjacent in memory.
template <class Op, class T>
void reduce_columns_range(const T* x, const ReducePlan::Dims& d, int64_t begin, int64_t end, int64_t n,
                          typename Op::State* state) {
  std::fill_n(state, n, Op::start());
  if constexpr (std::is_same_v<Op, Sum<double>> && !std::is_same_v<T, double>) {
    float block[kColumns];
    for (int64_t r = begin; r < end; r += kRowBlock) {
      std::fill_n(block, n, 0.0f);
      for (int64_t i = r; i < std::min(end, r + kRowBlock); ++i) {
        const T* row = x + offset_of(d, i);
        for (int64_t c = 0; c < n; ++c) block[c] += static_cast<float>(row[c]);
      }
      for (int64_t c = 0; c < n; ++c) state[c] += block[c];
    }
  } else {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = x + offset_of(d, i);
      for (int64_t c = 0; c < n; ++c) state[c] = Op::join(state[c], static_cast<acc_t<T>>(row[c]));
    }
  }
}

template <class Op, class T>
void reduce_columns(const T* x, T* y, const ReducePlan& p, double scale) {
  int64_t width = p.kept.shape[p.kept.rank - 1], groups = p.kept.numel / width;  // runs of adjacent outputs
  int64_t blocks = (width + kColumns - 1) / kColumns, count = p.reduced.numel;
  int64_t pieces = std::max<int64_t>(1, (count + kRows - 1) / kRows), tasks = groups * blocks;
  std::vector<typename Op::State> partial(pieces * p.kept.numel);
  parallel_for(tasks * pieces,
               std::max<int64_t>(1, kPiece / std::max<int64_t>(1, std::min(width, kColumns) * std::min(count, kRows))),
               [&](int64_t b, int64_t e) {
                 for (int64_t i = b; i < e; ++i) {
                   int64_t task = i / pieces, piece = i % pieces, c = task % blocks * kColumns;
                   int64_t o = task / blocks * width + c;
                   reduce_columns_range<Op>(x + offset_of(p.kept, o), p.reduced, piece * kRows,
                                            std::min(count, (piece + 1) * kRows), std::min(kColumns, width - c),
                                            &partial[piece * p.kept.numel + o]);
                 }
               });
  parallel_for(p.kept.numel, kPiece, [&](int64_t b, int64_t e) {
    for (int64_t o = b; o < e; ++o) {
      auto s = Op::start();
      for (int64_t i = 0; i < pieces; ++i) s = Op::join(s, partial[i * p.kept.numel + o]);
      y[o] = finish<T>(s, scale);
    }
  });
}

template <class Op, class T>
void reduce_as(const Tensor& x, const Tensor& y, const ReducePlan& p, double scale) {
  p.columns() ? reduce_columns<Op>(x.data<T>(), y.data<T>(), p, scale)
              : reduce_rows<Op>(x.data<T>(), y.data<T>(), p, scale);
}

template <bool kMax>
void extremum(const Tensor& x, const Tensor& y, const ReducePlan& p, double scale) {
  visit_float(x.dtype(), [&](auto tag) { reduce_as<Extremum<kMax>, typename decltype(tag)::type>(x, y, p, scale); });
}

}  // namespace

void reduce(const Tensor& x, const Tensor& y, const ReducePlan& plan, ReduceKind kind, double scale) {
  switch (kind) {
    case ReduceKind::sum:
      return visit_summand(x.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        reduce_as<Sum<std::conditional_t<std::is_integral_v<T>, T, double>>, T>(x, y, plan, scale);
      });
    case ReduceKind::max:
      return extremum<true>(x, y, plan, scale);
    case ReduceKind::min:
      return extremum<false>(x, y, plan, scale);
  }
}

}  // namespace xylem::cpu
