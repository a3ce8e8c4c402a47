// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "core/util/parallel.h"
#include "ops/optim/optim.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 16384, kPiece = 4096;

template <class T>
T* pointer(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

bool skipped(const Tensor& skip) { return skip.defined() && *skip.data<int32_t>() != 0; }
float scale_of(const Tensor& scale) { return scale.defined() ? *scale.data<float>() : 1.0f; }

// Calls f(Tag<T>, Tag<G>) with the types of a parameter and its gradient.
template <class F>
void visit_update(const Tensor& param, const Tensor& grad, F&& f) {
  visit_float(param.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (grad.dtype() == param.dtype())
      f(tag, tag);
    else
      f(tag, Tag<acc_t<T>>{});
  });
}

}  // namespace

void adamw(const AdamWStep& s) {
  if (skipped(s.skip)) return;
  visit_update(s.param, s.grad, [&](auto param_tag, auto grad_tag) {
    using T = typename decltype(param_tag)::type;
    using G = typename decltype(grad_tag)::type;
    using A = acc_t<T>;
    T* param = s.param.data<T>();
    A *master = pointer<A>(s.master), *m = s.m.data<A>(), *v = s.v.data<A>();
    const G* grad = s.grad.data<const G>();
    const double step = double(*s.step.data<int64_t>()), lr = double(*s.lr.data<float>());
    const A beta1 = A(s.args.beta1), beta2 = A(s.args.beta2), eps = A(s.args.eps), scale = A(scale_of(s.grad_scale));
    const A keep = A(1 - lr * s.args.weight_decay), rate = A(lr / (1 - std::pow(s.args.beta1, step)));
    const A root = A(1 / std::sqrt(1 - std::pow(s.args.beta2, step)));
    parallel_for(s.param.numel(), kGrain, [&](int64_t begin, int64_t end) {
      auto update = [&](int64_t i, A p) {
        const A g = A(grad[i]) * scale;
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        return p * keep - rate * m[i] / (std::sqrt(v[i]) * root + eps);
      };
      if (master) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          master[i] = update(i, master[i]);
          param[i] = T(master[i]);
        }
      } else {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) param[i] = T(update(i, A(param[i])));
      }
    });
  });
}

void sgd(const SgdStep& s) {
  if (skipped(s.skip)) return;
  visit_update(s.param, s.grad, [&](auto param_tag, auto grad_tag) {
    using T = typename decltype(param_tag)::type;
    using G = typename decltype(grad_tag)::type;
    using A = acc_t<T>;
    T* param = s.param.data<T>();
    A *master = pointer<A>(s.master), *buffer = pointer<A>(s.momentum);
    const G* grad = s.grad.data<const G>();
    const A lr = A(*s.lr.data<float>()), scale = A(scale_of(s.grad_scale));
    const A momentum = A(s.args.momentum), decay = A(s.args.weight_decay);
    const bool nesterov = s.args.nesterov;
    parallel_for(s.param.numel(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const A p = master ? master[i] : A(param[i]);
        A d = A(grad[i]) * scale + decay * p;
        if (buffer) {
          buffer[i] = momentum * buffer[i] + d;
          d = nesterov ? d + momentum * buffer[i] : buffer[i];
        }
        const A next = p - lr * d;
        if (master) master[i] = next;
        param[i] = T(next);
      }
    });
  });
}

void sum_of_squares(const Tensors& tensors, const Tensor& result) {
  double total = 0;
  for (const Tensor& t : tensors)
    visit_float(t.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      using A = acc_t<T>;
      const T* x = t.data<const T>();
      const int64_t n = t.numel(), pieces = (n + kPiece - 1) / kPiece;
      std::vector<double> partial(pieces);
      parallel_for(pieces, 4, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) {
          const T* piece = x + p * kPiece;
          const int64_t count = std::min(kPiece, n - p * kPiece);
          A sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t i = 0; i < count; ++i) sum += A(piece[i]) * A(piece[i]);
          partial[p] = double(sum);
        }
      });
      for (double p : partial) total += p;
    });
  *result.data<double>() = total;
}

void ema(const Tensor& average, const Tensor& value, double decay) {
  visit_float(average.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    T* a = average.data<T>();
    const T* x = value.data<const T>();
    const A keep = A(decay), take = A(1 - decay);
    parallel_for(average.numel(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) a[i] = T(keep * A(a[i]) + take * A(x[i]));
    });
  });
}

}  // namespace xylem::cpu
