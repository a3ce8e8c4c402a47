// SPDX-License-Identifier: Apache-2.0
#include "core/util/parallel.h"
#include "ops/random/random.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kBlocks = 16, kWords = 4 * kBlocks;  // Philox blocks made together, so that their rounds vectorise
constexpr int64_t kGrain = 256;                        // batches per thread at least

// Calls f(first, count, words) for runs of elements: words[i] belongs to element first + i. The run's `words` are
// complete even where fewer elements are left.
template <class F>
void for_words(int64_t n, const RngKey& key, F&& f) {
  parallel_for((n + kWords - 1) / kWords, kGrain, [&](int64_t b, int64_t e) {
    const uint64_t step = *key.step;
    const RngKey local{key.seed, key.op, &step};
    uint32_t words[kWords];
    for (int64_t batch = b; batch < e; ++batch) {
      for (int64_t j = 0; j < kBlocks; ++j) {
        Philox4 r = local(uint64_t(batch * kBlocks + j));
        words[4 * j] = r.v[0], words[4 * j + 1] = r.v[1], words[4 * j + 2] = r.v[2], words[4 * j + 3] = r.v[3];
      }
      f(batch * kWords, std::min(kWords, n - batch * kWords), words);
    }
  });
}

}  // namespace

void uniform(const Tensor& t, RngKey key, double low, double high) {
  visit_float(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    for_words(
        t.numel(), key,
        [out = t.data<T>(), low = A(low), range = A(high - low)](int64_t first, int64_t count, const uint32_t* words) {
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) out[first + i] = T(affine(low, range, uniform_as<T>(words[i])));
        });
  });
}

void normal(const Tensor& t, RngKey key, double mean, double stddev) {
  visit_float(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_words(t.numel(), key, [out = t.data<T>(), mean, stddev](int64_t first, int64_t count, const uint32_t* words) {
      double value[kWords];
#pragma omp simd
      for (int64_t i = 0; i < kWords / 2; ++i) {
        NormalPair pair = normal_pair(words[2 * i], words[2 * i + 1]);
        value[2 * i] = affine(mean, stddev, pair.first), value[2 * i + 1] = affine(mean, stddev, pair.second);
      }
      for (int64_t i = 0; i < count; ++i) out[first + i] = T(acc_t<T>(value[i]));
    });
  });
}

void dropout(const Tensor& x, const Tensor& y, RngKey key, double p) {
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    for_words(x.numel(), key,
              [in = x.data<T>(), out = y.data<T>(), keep = float(1 - p), scale = A(1 / (1 - p))](
                  int64_t first, int64_t count, const uint32_t* words) {
#pragma omp simd
                for (int64_t i = 0; i < count; ++i) {
                  A kept = A(in[first + i]) * scale;
                  out[first + i] = T(uniform01(words[i]) < keep ? kept : A(0));
                }
              });
  });
}

}  // namespace xylem::cpu
