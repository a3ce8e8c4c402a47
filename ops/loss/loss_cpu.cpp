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

// out = (softmax - the target's distribution) * scale of one row; out may be x.
template <class T, class A>
void gradient_row(const CrossEntropy& c, const A* x, A lse, int64_t target, A scale, T* out, Buffer<A>& buffer) {
  const A spread = A(c.args.label_smoothing / double(c.classes)), hit = A(1 - c.args.label_smoothing);
  if constexpr (std::is_same_v<T, A>) {
    Row<A>(out, c.classes) = ((ConstRow<A>(x, c.classes) - lse).exp() - spread) * scale;
    out[target] -= hit * scale;
  } else {
    buffer.resize(c.classes);
    buffer = ((ConstRow<A>(x, c.classes) - lse).exp() - spread) * scale;
    buffer[target] -= hit * scale;
    for (int64_t i = 0; i < c.classes; ++i) out[i] = T(buffer[i]);
  }
}

template <class T, class A = acc_t<T>>
void rows(const CrossEntropy& c) {
  const T* logits = c.logits.data<const T>();
  const int64_t* targets = c.targets.data<int64_t>();
  for (int64_t r = 0; r < c.rows; ++r)
    if (targets[r] != c.args.ignore_index && (targets[r] < 0 || targets[r] >= c.classes))
      kTargetOutside.raise(targets[r], c.classes);
  A *row_loss = c.row_loss.data<A>(), *kept = c.lse.defined() ? c.lse.data<A>() : nullptr;
  T* dlogits = c.dlogits.defined() ? c.dlogits.data<T>() : nullptr;
  parallel_for(c.rows, 1 + kGrain / c.classes, [&](int64_t begin, int64_t end) {
    Buffer<A> buffer, result;
    for (int64_t r = begin; r < end; ++r) {
      const A* x = widened<T, A>(logits + r * c.classes, c.classes, buffer);
      ConstRow<A> row(x, c.classes);
      const A top = row.maxCoeff();
      // A row whose largest value is infinite has no finite shift.
      const A lse = std::isinf(top) ? top : top + std::log((row - top).exp().sum());
      if (kept) kept[r] = lse;
      row_loss[r] = 0;
      if (targets[r] != c.args.ignore_index) {
        row_loss[r] = lse - A(1 - c.args.label_smoothing) * x[targets[r]];
        if (c.args.label_smoothing > 0) row_loss[r] -= A(c.args.label_smoothing) * row.mean();
        if (dlogits) gradient_row(c, x, lse, targets[r], A(1), dlogits + r * c.classes, result);
      } else if (dlogits) {
        std::fill_n(dlogits + r * c.classes, c.classes, T(0.0f));
      }
    }
  });
}

template <class A>
void total(const CrossEntropy& c) {
  const int64_t* targets = c.targets.data<int64_t>();
  const A* row_loss = c.row_loss.data<const A>();
  double sum = 0;
  int64_t count = 0;
  for (int64_t r = 0; r < c.rows; ++r) sum += double(row_loss[r]), count += targets[r] != c.args.ignore_index;
  const bool mean = c.args.reduction == LossReduction::mean;
  *c.inverse_count.data<A>() = !mean ? A(1) : count > 0 ? A(1) / A(count) : A(0);
  *c.loss.data<A>() = mean && count > 0 ? A(sum / double(count)) : A(sum);
}

template <class T, class A = acc_t<T>>
void backward(const CrossEntropy& c) {
  const T* logits = c.logits.data<const T>();
  const int64_t* targets = c.targets.data<int64_t>();
  const A *lse = c.lse.data<const A>(), scale = *c.grad.data<const A>() * *c.inverse_count.data<const A>();
  T* dlogits = c.dlogits.data<T>();
  parallel_for(c.rows, 1 + kGrain / c.classes, [&](int64_t begin, int64_t end) {
    Buffer<A> buffer, result;
    for (int64_t r = begin; r < end; ++r) {
      T* out = dlogits + r * c.classes;
      if (targets[r] == c.args.ignore_index)
        std::fill_n(out, c.classes, T(0.0f));
      else
        gradient_row(c, widened<T, A>(logits + r * c.classes, c.classes, buffer), lse[r], targets[r], scale, out,
                     result);
    }
  });
}

}  // namespace

void cross_entropy_rows(const CrossEntropy& c) {
  visit_float(c.logits.dtype(), [&](auto tag) { rows<typename decltype(tag)::type>(c); });
}
void cross_entropy_total(const CrossEntropy& c) { c.loss.dtype() == f64 ? total<double>(c) : total<float>(c); }
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
