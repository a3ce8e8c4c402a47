// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU: blocks of query rows against all keys they see, one head at a time, heads in parallel. Scores
// are held transposed, keys by queries, so that the softmax of every query runs down a vector lane.
#include <cmath>
#include <limits>
#include <vector>

#include "core/util/parallel.h"
#include "ops/attention/attention.h"
#include "ops/backend/eigen.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kBlock = 32;  // query rows whose scores are held at once

template <class A>
using Matrix = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// One head of a [B, S, H, D] tensor.
template <class T>
struct Head {
  T* data;
  int64_t rows, stride, size;
  Head(const Tensor& t, int64_t b, int64_t h)
      : data(t.data<T>() + b * t.stride(0) + h * t.stride(2)), rows(t.size(1)), stride(t.stride(1)), size(t.size(3)) {}
};

template <class A, class T>
void load(Matrix<A>& to, const Head<T>& from, A factor = 1) {
  to.resize(from.rows, from.size);
  for (int64_t r = 0; r < from.rows; ++r) {
    const T* p = from.data + r * from.stride;
    A* d = to.data() + r * from.size;
    for (int64_t i = 0; i < from.size; ++i) d[i] = A(p[i]) * factor;
  }
}
template <class T, class M>
void store(const Head<T>& to, int64_t first, const M& from) {
  for (int64_t r = 0; r < from.rows(); ++r) {
    T* d = to.data + (first + r) * to.stride;
    for (int64_t i = 0; i < to.size; ++i) d[i] = T(from(r, i));
  }
}

// A block of consecutive queries.
struct Block {
  int64_t first, rows, queries, keys;
  bool causal;
  Block(int64_t from, int64_t all_queries, int64_t all_keys, bool masked)
      : first(from), rows(std::min(kBlock, all_queries - from)), queries(all_queries), keys(all_keys), causal(masked) {}
  // Keys that the block's query r sees, and those that any of its queries sees.
  int64_t visible(int64_t r) const { return causal ? std::min(keys, first + r + 1 + keys - queries) : keys; }
  int64_t seen() const { return visible(rows - 1); }
};

// Scores of keys that a query does not see become `value`.
template <class A>
void mask(Matrix<A>& scores, const Block& block, A value) {
  for (int64_t j = block.visible(0); j < scores.rows(); ++j)
    for (int64_t r = 0; r < block.rows && block.visible(r) <= j; ++r) scores(j, r) = value;
}

template <class A>
void exponentials(Matrix<A>& m) {
  Eigen::Map<Eigen::Array<A, Eigen::Dynamic, 1>> flat(m.data(), m.size());
  flat = flat.exp();
}

// Calls f(j, row j of m) for every key.
template <class A, class F>
void each_key(Matrix<A>& m, F&& f) {
  A* p = m.data();
  for (int64_t j = 0; j < m.rows(); ++j, p += m.cols()) f(j, p);
}

template <class T, class A = acc_t<T>>
void forward(const AttentionCall& a) {
  const int64_t batch = a.q.size(0), queries = a.q.size(1), heads = a.q.size(2), keys = a.k.size(1);
  const int64_t group = heads / a.k.size(2);
  A* lse = a.lse.data<A>();
  parallel_for(batch * heads, 1, [&](int64_t begin, int64_t end) {
    Matrix<A> q, k, v, scores, out;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / heads, h = task % heads;
      load(q, Head<const T>(a.q, b, h), A(a.scale));
      load(k, Head<const T>(a.k, b, h / group));
      load(v, Head<const T>(a.v, b, h / group));
      for (int64_t first = 0; first < queries; first += kBlock) {
        const Block block(first, queries, keys, a.causal);
        const int64_t rows = block.rows, seen = block.seen();
        scores.noalias() = k.topRows(seen) * q.middleRows(first, rows).transpose();
        mask(scores, block, -std::numeric_limits<A>::infinity());
        A top[kBlock], sum[kBlock] = {};
        std::fill_n(top, rows, -std::numeric_limits<A>::infinity());
        each_key(scores, [&](int64_t, const A* s) {
#pragma omp simd
          for (int64_t r = 0; r < rows; ++r) top[r] = s[r] > top[r] ? s[r] : top[r];
        });
        each_key(scores, [&](int64_t, A* s) {
#pragma omp simd
          for (int64_t r = 0; r < rows; ++r) s[r] -= top[r];
        });
        exponentials(scores);
        mask(scores, block, A(0));
        each_key(scores, [&](int64_t, const A* s) {
#pragma omp simd
          for (int64_t r = 0; r < rows; ++r) sum[r] += s[r];
        });
        out.noalias() = scores.transpose() * v.topRows(seen);
        for (int64_t r = 0; r < rows; ++r) {
          lse[task * queries + first + r] = top[r] + std::log(sum[r]);
          out.row(r) *= 1 / sum[r];
        }
        store(Head<T>(a.out, b, h), first, out);
      }
    }
  });
}

template <class T, class A = acc_t<T>>
void backward(const AttentionGrad& a) {
  const int64_t batch = a.q.size(0), queries = a.q.size(1), heads = a.q.size(2), keys = a.k.size(1);
  const int64_t key_heads = a.k.size(2), group = heads / key_heads;
  // A task owns a key head and walks the query heads that share it in order.
  parallel_for(batch * key_heads, 1, [&](int64_t begin, int64_t end) {
    Matrix<A> q, k, v, dout, p, dp, dq, dk, dv;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / key_heads, hk = task % key_heads;
      load(k, Head<const T>(a.k, b, hk));
      load(v, Head<const T>(a.v, b, hk));
      dk.setZero(keys, k.cols());
      dv.setZero(keys, k.cols());
      for (int64_t h = hk * group; h < (hk + 1) * group; ++h) {
        load(q, Head<const T>(a.q, b, h), A(a.scale));
        load(dout, Head<const T>(a.dout, b, h));
        for (int64_t first = 0; first < queries; first += kBlock) {
          const Block block(first, queries, keys, a.causal);
          const int64_t rows = block.rows, seen = block.seen();
          const A* lse = a.lse.data<const A>() + (b * heads + h) * queries + first;
          p.noalias() = k.topRows(seen) * q.middleRows(first, rows).transpose();
          dp.noalias() = v.topRows(seen) * dout.middleRows(first, rows).transpose();
          each_key(p, [&](int64_t, A* s) {
#pragma omp simd
            for (int64_t r = 0; r < rows; ++r) s[r] -= lse[r];
          });
          exponentials(p);
          mask(p, block, A(0));
          A along[kBlock] = {};
          each_key(p, [&](int64_t j, const A* s) {
            const A* d = dp.data() + j * rows;
#pragma omp simd
            for (int64_t r = 0; r < rows; ++r) along[r] += s[r] * d[r];
          });
          each_key(p, [&](int64_t j, const A* s) {
            A* d = dp.data() + j * rows;
#pragma omp simd
            for (int64_t r = 0; r < rows; ++r) d[r] = s[r] * (d[r] - along[r]);
          });
          dv.topRows(seen).noalias() += p * dout.middleRows(first, rows);
          dk.topRows(seen).noalias() += dp * q.middleRows(first, rows);
          dq.noalias() = dp.transpose() * k.topRows(seen);
          dq *= A(a.scale);
          store(Head<T>(a.dq, b, h), first, dq);
        }
      }
      store(Head<T>(a.dk, b, hk), 0, dk);
      store(Head<T>(a.dv, b, hk), 0, dv);
    }
  });
}

}  // namespace

void attention(const AttentionCall& a) {
  visit_float(a.q.dtype(), [&](auto tag) { forward<typename decltype(tag)::type>(a); });
}
void attention_backward(const AttentionGrad& a) {
  visit_float(a.q.dtype(), [&](auto tag) { backward<typename decltype(tag)::type>(a); });
}

}  // namespace xylem::cpu
