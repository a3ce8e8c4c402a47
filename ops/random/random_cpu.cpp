// SPDX-License-Identifier: Apache-2.0
#include "core/util/parallel.h"
#include "ops/random/random.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 4096;  // Philox blocks

// Calls f(i, word) for every element of blocks of four.
template <class F>
void for_words(int64_t n, const RngKey& key, F&& f) {
  parallel_for((n + 3) / 4, kGrain, [&](int64_t b, int64_t e) {
    for (int64_t block = b; block < e; ++block) {
      Philox4 r = key(uint64_t(block));
      for (int64_t k = 0; k < std::min<int64_t>(4, n - block * 4); ++k) f(block * 4 + k, r.v[k]);
    }
  });
}

}  // namespace

void uniform(const Tensor& t, RngKey key, double low, double high) {
  visit_float(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    T* out = t.data<T>();
    for_words(t.numel(), key,
              [=](int64_t i, uint32_t word) { out[i] = T(A(low) + A(high - low) * A(uniform01(word))); });
  });
}

void normal(const Tensor& t, RngKey key, double mean, double stddev) {
  visit_float(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    T* out = t.data<T>();
    int64_t n = t.numel();
    parallel_for((n + 3) / 4, kGrain / 8, [&](int64_t b, int64_t e) {
      for (int64_t block = b; block < e; ++block) {
        double z[4];
        normal4(key, uint64_t(block), z);
        for (int64_t k = 0; k < std::min<int64_t>(4, n - block * 4); ++k)
          out[block * 4 + k] = T(A(mean + stddev * z[k]));
      }
    });
  });
}

void dropout(const Tensor& x, const Tensor& y, RngKey key, double p) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const T* in = x.data<T>();
    T* out = y.data<T>();
    float keep = float(1 - p);
    A scale = A(1 / (1 - p));
    for_words(x.numel(), key,
              [=](int64_t i, uint32_t word) { out[i] = T(uniform01(word) < keep ? A(in[i]) * scale : A(0)); });
  });
}

}  // namespace xylem::cpu
