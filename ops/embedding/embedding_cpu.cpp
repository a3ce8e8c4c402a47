// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "core/tensor/visit_width.h"
#include "core/util/parallel.h"
#include "ops/embedding/embedding.h"

namespace xylem::cpu {
namespace {

constexpr int64_t kGrain = 16384;

void check_range(const int64_t* index, int64_t count, int64_t bound, const Fault& fault) {
  for (int64_t i = 0; i < count; ++i)
    if (index[i] < 0 || index[i] >= bound) fault.raise(index[i], bound);
}

// Every thread takes a range of columns and walks all rows in order: balanced, deterministic, and nothing is shared.
template <class T, class O>
void add_rows_as(const T* rows, const int64_t* index, int64_t count, O* out, Lanes lanes) {
  constexpr int64_t kLine = 16;
  const int64_t lines = (lanes.inner + kLine - 1) / kLine;
  parallel_for(lanes.outer * lines, 1 + kGrain / (kLine * count), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t o = begin / lines, first = begin % lines, last = std::min(lines, first + end - begin);
      const int64_t from = first * kLine, to = std::min(lanes.inner, last * kLine);
      for (int64_t j = 0; j < count; ++j) {
        const T* row = rows + (o * count + j) * lanes.inner;
        O* target = out + (o * lanes.size + index[j]) * lanes.inner;
#pragma omp simd
        for (int64_t i = from; i < to; ++i) target[i] += O(row[i]);
      }
      begin += last - first;
    }
  });
}

}  // namespace

void take_rows(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, const Fault& fault) {
  const int64_t count = index.numel(), bytes = lanes.inner * int64_t(size_of(x.dtype()));
  const int64_t* at = index.data<int64_t>();
  check_range(at, count, lanes.size, fault);
  const char* from = static_cast<const char*>(x.raw());
  char* to = static_cast<char*>(out.raw());
  parallel_for(lanes.outer * count, 1 + kGrain / lanes.inner, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(to + r * bytes, from + (r / count * lanes.size + at[r % count]) * bytes, bytes);
  });
}

void add_rows(const Tensor& rows, const Tensor& index, const Tensor& out, Lanes lanes, bool accumulate) {
  if (!accumulate) out.zero_();
  const int64_t count = index.numel();
  if (count == 0 || out.numel() == 0) return;
  // Sixteen-bit sums are formed in f32.
  Tensor sum = is_half(out.dtype()) ? out.to(f32) : out;
  visit_float(rows.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    add_rows_as(rows.data<const T>(), index.data<int64_t>(), count, sum.data<acc_t<T>>(), lanes);
  });
  if (!sum.same_as(out)) out.copy_(sum);
}

void gather(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, int64_t count, const Fault& fault) {
  const int64_t* at = index.data<int64_t>();
  check_range(at, index.numel(), lanes.size, fault);
  visit_width(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = static_cast<const T*>(x.raw());
    T* to = static_cast<T*>(out.raw());
    parallel_for(lanes.outer * count, 1 + kGrain / lanes.inner, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* source = from + r / count * lanes.size * lanes.inner;
        for (int64_t i = 0; i < lanes.inner; ++i)
          to[r * lanes.inner + i] = source[at[r * lanes.inner + i] * lanes.inner + i];
      }
    });
  });
}

void scatter_add(const Tensor& out, const Tensor& index, const Tensor& source, Lanes lanes, int64_t count,
                 const Fault& fault) {
  const int64_t* at = index.data<int64_t>();
  check_range(at, index.numel(), lanes.size, fault);
  visit_float(source.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const T* from = source.data<const T>();
    A* to = out.data<A>();
    parallel_for(lanes.outer, 1 + kGrain / (count * lanes.inner), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o)
        for (int64_t r = o * count; r < (o + 1) * count; ++r)
          for (int64_t i = 0; i < lanes.inner; ++i) {
            const int64_t k = r * lanes.inner + i;
            to[(o * lanes.size + at[k]) * lanes.inner + i] += A(from[k]);
          }
    });
  });
}

}  // namespace xylem::cpu
