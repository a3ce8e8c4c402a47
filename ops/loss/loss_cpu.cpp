// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/loss.h"

#include <cmath>
#include <vector>

#include "core/device/fault.h"
#include "core/util/parallel.h"
#include "ops/backend/eigen.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 8192, kPiece = 4096;

template <class A>
using Row = Eigen::Map<Eigen::Array<A, Eigen::Dynamic, 1>>;
template <class A>
using ConstRow = Eigen::Map<const Eigen::Array<A, Eigen::Dynamic, 1>>;

// Aligned, because the order in which Eigen adds a row up depends on where it begins.
template <class A>
using Buffer = Eigen::Array<A, Eigen::Dynamic, 1>;

// The values of a row in the type we compute in; `buffer` holds them where they need a conversion.
template <class T, class A>
const A* widened(const T* row, int64_t n, Buffer<A>& buffer) {
  if constexpr (std::is_same_v<T, A>) {
    return row;
  } else {
    buffer.resize(n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) buffer[i] = A(row[i]);
    return buffer.data();
  }
}

template <class T, class A = acc_t<T>>
void forward(const CrossEntropy& c) {
  const T* logits = c.logits.data<const T>();
  const int64_t* targets = c.targets.data<int64_t>();
  A* lse = c.lse.data<A>();
  int64_t count = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    if (targets[r] == c.ignore_index) continue;
    if (targets[r] < 0 || targets[r] >= c.classes) kTargetOutside.raise(targets[r], c.classes);
    ++count;
  }
  std::vector<A> losses(c.rows);
  parallel_for(c.rows, 1 + kGrain / c.classes, [&](int64_t begin, int64_t end) {
    Buffer<A> buffer;
    for (int64_t r = begin; r < end; ++r) {
      const A* x = widened<T, A>(logits + r * c.classes, c.classes, buffer);
      ConstRow<A> row(x, c.classes);
      const A top = row.maxCoeff();
      // A row whose largest value is infinite has no finite shift.
      lse[r] = std::isinf(top) ? top : top + std::log((row - top).exp().sum());
      if (targets[r] == c.ignore_index) continue;
      losses[r] = lse[r] - A(1 - c.smoothing) * x[targets[r]];
      if (c.smoothing > 0) losses[r] -= A(c.smoothing) * row.mean();
    }
  });
  double total = 0;
  for (A l : losses) total += double(l);
  *c.inverse_count.data<A>() = count > 0 ? A(1) / A(count) : A(0);
  *c.loss.data<A>() = count > 0 ? A(total / double(count)) : A(0);
}

template <class T, class A = acc_t<T>>
void backward(const CrossEntropy& c) {
  const T* logits = c.logits.data<const T>();
  const int64_t* targets = c.targets.data<int64_t>();
  const A *lse = c.lse.data<const A>(), scale = *c.grad.data<const A>() * *c.inverse_count.data<const A>();
  T* dlogits = c.dlogits.data<T>();
  const A spread = A(c.smoothing / double(c.classes)), hit = A(1 - c.smoothing);
  parallel_for(c.rows, 1 + kGrain / c.classes, [&](int64_t begin, int64_t end) {
    Buffer<A> buffer, result;
    for (int64_t r = begin; r < end; ++r) {
      T* out = dlogits + r * c.classes;
      if (targets[r] == c.ignore_index) {
        std::fill(out, out + c.classes, T(0.0f));
        continue;
      }
      ConstRow<A> row(widened<T, A>(logits + r * c.classes, c.classes, buffer), c.classes);
      if constexpr (std::is_same_v<T, A>) {
        Row<A>(out, c.classes) = ((row - lse[r]).exp() - spread) * scale;
        out[targets[r]] -= hit * scale;
      } else {
        result.resize(c.classes);
        Row<A>(result.data(), c.classes) = ((row - lse[r]).exp() - spread) * scale;
        result[targets[r]] -= hit * scale;
        for (int64_t i = 0; i < c.classes; ++i) out[i] = T(result[i]);
      }
    }
  });
}

}  // namespace

void cross_entropy(const CrossEntropy& c) {
  visit_float(c.logits.dtype(), [&](auto tag) { forward<typename decltype(tag)::type>(c); });
}
void cross_entropy_backward(const CrossEntropy& c) {
  visit_float(c.logits.dtype(), [&](auto tag) { backward<typename decltype(tag)::type>(c); });
}

void mse(const Tensor& x, const Tensor& target, const Tensor& loss) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const T *a = x.data<const T>(), *b = target.data<const T>();
    const int64_t n = x.numel(), pieces = (n + kPiece - 1) / kPiece;
    std::vector<double> partial(pieces);
    parallel_for(pieces, 4, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const T *pa = a + p * kPiece, *pb = b + p * kPiece;
        const int64_t count = std::min(kPiece, n - p * kPiece);
        A sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; ++i) sum += (A(pa[i]) - A(pb[i])) * (A(pa[i]) - A(pb[i]));
        partial[p] = double(sum);
      }
    });
    double total = 0;
    for (double p : partial) total += p;
    *loss.data<A>() = A(total / double(n));
  });
}

void mse_backward(const Tensor& x, const Tensor& target, const Tensor& grad, const Tensor& dx, const Tensor& dtarget) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const T *a = x.data<const T>(), *b = target.data<const T>();
    const A scale = A(2) * *grad.data<const A>() / A(x.numel());
    T *da = dx.defined() ? dx.data<T>() : nullptr, *db = dtarget.defined() ? dtarget.data<T>() : nullptr;
    parallel_for(x.numel(), 4 * kGrain, [&](int64_t begin, int64_t end) {
      if (da)
        for (int64_t i = begin; i < end; ++i) da[i] = T((A(a[i]) - A(b[i])) * scale);
      if (db)
        for (int64_t i = begin; i < end; ++i) db[i] = T((A(b[i]) - A(a[i])) * scale);
    });
  });
}

}  // namespace xylem::cpu
