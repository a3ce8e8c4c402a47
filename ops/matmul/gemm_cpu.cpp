// SPDX-License-Identifier: Apache-2.0
// Products on the CPU: Eigen's kernels, one thread per tile of the result. The tiling depends on the shapes alone, so
// results do not depend on the number of threads.
#include <vector>

#include "core/util/parallel.h"
#include "ops/backend/eigen.h"
#include "ops/matmul/matmul.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kBlockK = 512;  // 16-bit operands are widened this many k at a time

template <class T>
struct Source {  // an operand's tile
  const T* data;
  int64_t ld;
  bool transposed;
};

// c (+)= a b with every operand in T, which is float or double.
template <class T>
void multiply(Source<T> a, Source<T> b, T* c, int64_t ldc, int64_t m, int64_t n, int64_t k, bool accumulate) {
  eigen::Map<T> result(c, m, n, Eigen::OuterStride<>(ldc));
  auto run = [&](const auto& left, const auto& right) {
    if (accumulate)
      result.noalias() += left * right;
    else
      result.noalias() = left * right;
  };
  auto with_left = [&](const auto& left) {
    Eigen::OuterStride<> ld(b.ld);
    if (b.transposed)
      run(left, eigen::ConstMap<T, Eigen::ColMajor>(b.data, k, n, ld));
    else
      run(left, eigen::ConstMap<T>(b.data, k, n, ld));
  };
  Eigen::OuterStride<> ld(a.ld);
  if (a.transposed)
    with_left(eigen::ConstMap<T, Eigen::ColMajor>(a.data, m, k, ld));
  else
    with_left(eigen::ConstMap<T>(a.data, m, k, ld));
}

template <class TD, class T>
void add_bias(const TD* bias, T* c, int64_t ldc, int64_t m, int64_t n) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = T(bias[j]);
}

// One tile of the result. 16-bit operands go through float buffers, a block of k at a time.
template <class T, class TD>
void tile(Source<T> a, Source<T> b, TD* d, int64_t ldd, const TD* bias, int64_t m, int64_t n, int64_t k,
          bool accumulate) {
  if constexpr (std::is_same_v<T, acc_t<T>> && std::is_same_v<T, TD>) {
    if (bias) add_bias(bias, d, ldd, m, n);
    multiply(a, b, d, ldd, m, n, k, accumulate || bias);
  } else {
    thread_local std::vector<float> wide_a, wide_b, wide_c;
    auto widen = [](Source<T> s, int64_t lines, int64_t length, std::vector<float>& out) {
      out.resize(lines * length);
      for (int64_t i = 0; i < lines; ++i)
        for (int64_t j = 0; j < length; ++j) out[i * length + j] = float(s.data[i * s.ld + j]);
      return Source<float>{out.data(), length, s.transposed};
    };
    wide_c.resize(m * n);
    if (bias) add_bias(bias, wide_c.data(), n, m, n);
    for (int64_t k0 = 0; k0 < k; k0 += kBlockK) {
      int64_t kb = std::min(kBlockK, k - k0);
      Source<T> ak = {a.data + k0 * (a.transposed ? a.ld : 1), a.ld, a.transposed};
      Source<T> bk = {b.data + k0 * (b.transposed ? 1 : b.ld), b.ld, b.transposed};
      Source<float> fa = ak.transposed ? widen(ak, kb, m, wide_a) : widen(ak, m, kb, wide_a);
      Source<float> fb = bk.transposed ? widen(bk, n, kb, wide_b) : widen(bk, kb, n, wide_b);
      multiply(fa, fb, wide_c.data(), n, m, n, kb, bias || k0 > 0);
    }
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float value = wide_c[i * n + j];
        d[i * ldd + j] = TD(accumulate ? float(d[i * ldd + j]) + value : value);
      }
  }
}

int64_t tile_offset(const Gemm::Operand& o, int64_t row, int64_t col, int64_t outer, int64_t inner) {
  return outer * o.step[0] + inner * o.step[1] + (o.transposed ? col * o.ld + row : row * o.ld + col);
}

template <class T, class TD>
void run_typed(const Gemm& g) {
  // Tiles: halve the longer side until there is work for sixteen cores; past the second tile only while they stay
  // large, since every tile packs its operands again.
  int64_t batch = g.batch[0] * g.batch[1], tm = g.m, tn = g.n;
  auto count = [](int64_t n, int64_t t) { return (n + t - 1) / t; };
  while (2.0 * tm * tn * g.k > 4e6) {
    int64_t tiles = batch * count(g.m, tm) * count(g.n, tn), longer = std::max(tm, tn);
    if (tiles >= 16 || longer <= (tiles < 2 ? 64 : 256)) break;
    (tm >= tn ? tm : tn) = ((longer + 1) / 2 + 15) / 16 * 16;
  }
  int64_t rows = count(g.m, tm), cols = count(g.n, tn), tiles = batch * rows * cols;
  double flops = 2.0 * tm * tn * g.k;
  parallel_for(tiles, flops > 2e5 ? 1 : int64_t(2e5 / (flops + 1)) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int64_t i = t / cols % rows * tm, j = t % cols * tn, outer = t / (rows * cols) / g.batch[1],
              inner = t / (rows * cols) % g.batch[1];
      Source<T> a = {static_cast<const T*>(g.a.data) + tile_offset(g.a, i, 0, outer, inner), g.a.ld, g.a.transposed};
      Source<T> b = {static_cast<const T*>(g.b.data) + tile_offset(g.b, 0, j, outer, inner), g.b.ld, g.b.transposed};
      TD* d = static_cast<TD*>(g.d.data) + tile_offset(g.d, i, j, outer, inner);
      const TD* bias = g.bias ? static_cast<const TD*>(g.bias) + j : nullptr;
      tile<T, TD>(a, b, d, g.d.ld, bias, std::min(tm, g.m - i), std::min(tn, g.n - j), g.k, g.accumulate);
    }
  });
}

template <class T, class TO>
void column_sum_typed(const T* x, TO* out, int64_t rows, int64_t cols, bool accumulate) {
  using Acc = acc_t<T>;
  constexpr int64_t kBlock = 64;  // rows summed apart, which keeps the rounding error small
  parallel_for(cols, std::max<int64_t>(64, 65536 / (rows + 1)), [&](int64_t begin, int64_t end) {
    std::vector<Acc> total(end - begin), part(end - begin);
    for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
      std::fill(part.begin(), part.end(), Acc(0));
      for (int64_t r = r0; r < std::min(rows, r0 + kBlock); ++r)
        for (int64_t c = begin; c < end; ++c) part[c - begin] += Acc(x[r * cols + c]);
      for (int64_t c = begin; c < end; ++c) total[c - begin] += part[c - begin];
    }
    for (int64_t c = begin; c < end; ++c) out[c] = TO(accumulate ? Acc(out[c]) + total[c - begin] : total[c - begin]);
  });
}

// Calls f(Tag<T>, Tag<TO>) for operands in T and a result in T or f32.
template <class F>
void visit_result(DType in, DType out, F&& f) {
  visit_float(in, [&](auto tag) {
    if (in == out) return f(tag, tag);
    XY_ASSERT(out == f32 && is_half(in), name_of(in), " to ", name_of(out));
    if constexpr (sizeof(typename decltype(tag)::type) == 2) f(tag, Tag<float>{});
  });
}

}  // namespace

void run_gemm(const Gemm& g, Device) {
  XY_ASSERT(g.a.dtype == g.b.dtype);
  visit_result(g.a.dtype, g.d.dtype,
               [&](auto in, auto out) { run_typed<typename decltype(in)::type, typename decltype(out)::type>(g); });
}

void run_column_sum(const Tensor& x, const Tensor& out, bool accumulate) {
  visit_result(x.dtype(), out.dtype(), [&](auto in, auto to) {
    column_sum_typed(x.data<typename decltype(in)::type>(), out.data<typename decltype(to)::type>(), x.size(0),
                     x.size(1), accumulate);
  });
}

}  // namespace xylem::cpu
