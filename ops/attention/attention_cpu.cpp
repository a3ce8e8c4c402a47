// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU: blocks of query rows against all keys they see, one head at a time, heads in parallel.
#include <cmath>
#include <vector>

#include "core/util/parallel.h"
#include "ops/attention/attention.h"
#include "ops/backend/eigen.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kBlock = 128;  // query rows whose scores are held at once

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
template <class A, class T, class M>
void store(const Head<T>& to, int64_t first, const M& from, A factor = 1) {
  for (int64_t r = 0; r < from.rows(); ++r) {
    T* d = to.data + (first + r) * to.stride;
    for (int64_t i = 0; i < to.size; ++i) d[i] = T(from(r, i) * factor);
  }
}

// The keys that query `row` sees.
int64_t visible(int64_t row, int64_t queries, int64_t keys, bool causal) {
  return causal ? std::min(keys, row + 1 + keys - queries) : keys;
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
        const int64_t rows = std::min(kBlock, queries - first);
        const int64_t seen = visible(first + rows - 1, queries, keys, a.causal);
        scores.noalias() = q.middleRows(first, rows) * k.topRows(seen).transpose();
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t n = visible(first + r, queries, keys, a.causal);
          auto row = scores.row(r).head(n).array();
          const A top = row.maxCoeff();
          row = (row - top).exp();
          const A sum = row.sum();
          row *= 1 / sum;
          scores.row(r).tail(seen - n).setZero();
          lse[task * queries + first + r] = top + std::log(sum);
        }
        out.noalias() = scores * v.topRows(seen);
        store<A>(Head<T>(a.out, b, h), first, out);
      }
    }
  });
}

template <class T, class A = acc_t<T>>
void backward(const AttentionGrad& a) {
  const int64_t batch = a.q.size(0), queries = a.q.size(1), heads = a.q.size(2), keys = a.k.size(1);
  const int64_t key_heads = a.k.size(2), group = heads / key_heads;
  const A* lse = a.lse.data<const A>();
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
          const int64_t rows = std::min(kBlock, queries - first);
          const int64_t seen = visible(first + rows - 1, queries, keys, a.causal);
          p.noalias() = q.middleRows(first, rows) * k.topRows(seen).transpose();
          dp.noalias() = dout.middleRows(first, rows) * v.topRows(seen).transpose();
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t n = visible(first + r, queries, keys, a.causal);
            auto row = p.row(r).head(n).array();
            auto drow = dp.row(r).head(n).array();
            row = (row - lse[(b * heads + h) * queries + first + r]).exp();
            const A along = (row * drow).sum();
            drow = row * (drow - along);
            p.row(r).tail(seen - n).setZero();
            dp.row(r).tail(seen - n).setZero();
          }
          dv.topRows(seen).noalias() += p.transpose() * dout.middleRows(first, rows);
          dk.topRows(seen).noalias() += dp.transpose() * q.middleRows(first, rows);
          dq.noalias() = dp * k.topRows(seen);
          store<A>(Head<T>(a.dq, b, h), first, dq, A(a.scale));
        }
      }
      store<A>(Head<T>(a.dk, b, hk), 0, dk);
      store<A>(Head<T>(a.dv, b, hk), 0, dv);
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
