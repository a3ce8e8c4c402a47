// SPDX-License-Identifier: Apache-2.0
// Pooling and interpolation on the CPU, one thread per channel plane. Gradients are scattered within the plane.
#include <cmath>
#include <vector>

#include "core/util/parallel.h"
#include "ops/conv/image.h"
#include "ops/conv/pool.h"

namespace xylem::cpu {
namespace {

// Calls f(n, c) for every plane of t.
template <class F>
void each_plane(const Tensor& t, F&& f) {
  int64_t channels = t.size(1), pixels = std::max<int64_t>(t.size(2) * t.size(3), 1);
  parallel_for(t.size(0) * channels, 16384 / pixels + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / channels, i % channels);
  });
}

// Collects a plane's gradient in the arithmetic type and stores it once. f(plane) adds to plane[row * width + column].
template <class T, class F>
void scatter_planes(const Tensor& dx, F&& f) {
  using A = acc_t<T>;
  ImageView<T> out(dx);
  int64_t rows = dx.size(2), columns = dx.size(3);
  each_plane(dx, [&](int64_t n, int64_t c) {
    thread_local std::vector<A> plane;
    plane.assign(rows * columns, A(0));
    f(n, c, plane.data());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) out.at(n, c)[i * out.h + j * out.w] = T(plane[i * columns + j]);
  });
}

template <class F>
void visit_type(const Tensor& t, F&& f) {
  visit_float(t.dtype(), [&](auto tag) { f(tag); });
}

}  // namespace

void max_pool(const Tensor& x, const Tensor& y, const Tensor& positions, const PoolShape& s) {
  visit_type(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ImageView<T> in(x), out(y);
    ImageView<int32_t> at(positions);
    each_plane(y, [&](int64_t n, int64_t c) {
      for (int64_t p = 0; p < s.h.out; ++p)
        for (int64_t q = 0; q < s.w.out; ++q) {
          int64_t top = s.h.begin(p), left = s.w.begin(q), best = top * s.w.in + left;
          acc_t<T> most = in.at(n, c)[top * in.h + left * in.w];
          for (int64_t i = top; i < s.h.end(p); ++i)
            for (int64_t j = left; j < s.w.end(q); ++j) {
              acc_t<T> value = in.at(n, c)[i * in.h + j * in.w];
              if (value > most || std::isnan(value)) most = value, best = i * s.w.in + j;
            }
          out.at(n, c)[p * out.h + q * out.w] = T(most);
          at.at(n, c)[p * at.h + q * at.w] = int32_t(best);
        }
    });
  });
}

void max_pool_backward(const Tensor& dy, const Tensor& positions, const Tensor& dx, const PoolShape& s) {
  visit_type(dy, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ImageView<T> in(dy);
    ImageView<int32_t> at(positions);
    scatter_planes<T>(dx, [&](int64_t n, int64_t c, acc_t<T>* plane) {
      for (int64_t p = 0; p < s.h.out; ++p)
        for (int64_t q = 0; q < s.w.out; ++q)
          plane[at.at(n, c)[p * at.h + q * at.w]] += acc_t<T>(in.at(n, c)[p * in.h + q * in.w]);
    });
  });
}

void avg_pool(const Tensor& x, const Tensor& y, const PoolShape& s) {
  visit_type(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    ImageView<T> in(x), out(y);
    each_plane(y, [&](int64_t n, int64_t c) {
      for (int64_t p = 0; p < s.h.out; ++p)
        for (int64_t q = 0; q < s.w.out; ++q) {
          A sum = 0;
          for (int64_t i = s.h.begin(p); i < s.h.end(p); ++i)
            for (int64_t j = s.w.begin(q); j < s.w.end(q); ++j) sum += A(in.at(n, c)[i * in.h + j * in.w]);
          A count = A(s.h.divisor(p, s.count_padding) * s.w.divisor(q, s.count_padding));
          out.at(n, c)[p * out.h + q * out.w] = T(sum / count);
        }
    });
  });
}

void avg_pool_backward(const Tensor& dy, const Tensor& dx, const PoolShape& s) {
  visit_type(dy, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    ImageView<T> in(dy);
    scatter_planes<T>(dx, [&](int64_t n, int64_t c, A* plane) {
      for (int64_t p = 0; p < s.h.out; ++p)
        for (int64_t q = 0; q < s.w.out; ++q) {
          A count = A(s.h.divisor(p, s.count_padding) * s.w.divisor(q, s.count_padding));
          A share = A(in.at(n, c)[p * in.h + q * in.w]) / count;
          for (int64_t i = s.h.begin(p); i < s.h.end(p); ++i)
            for (int64_t j = s.w.begin(q); j < s.w.end(q); ++j) plane[i * s.w.in + j] += share;
        }
    });
  });
}

void resample(const Tensor& x, const Tensor& y, const ResampleShape& s) {
  visit_type(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    ImageView<T> in(x), out(y);
    std::vector<ResampleTap<A>> columns;
    for (int64_t q = 0; q < s.w.out; ++q) columns.push_back(s.w.tap<A>(q));
    each_plane(y, [&](int64_t n, int64_t c) {
      for (int64_t p = 0; p < s.h.out; ++p) {
        auto [low, high, v] = s.h.tap<A>(p);
        const T *above = in.at(n, c) + low * in.h, *below = in.at(n, c) + high * in.h;
        for (int64_t q = 0; q < s.w.out; ++q) {
          auto [left, right, u] = columns[q];
          A top = (1 - u) * A(above[left * in.w]) + u * A(above[right * in.w]);
          A bottom = (1 - u) * A(below[left * in.w]) + u * A(below[right * in.w]);
          out.at(n, c)[p * out.h + q * out.w] = T((1 - v) * top + v * bottom);
        }
      }
    });
  });
}

void resample_backward(const Tensor& dy, const Tensor& dx, const ResampleShape& s) {
  visit_type(dy, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    ImageView<T> in(dy);
    std::vector<ResampleTap<A>> columns;
    for (int64_t q = 0; q < s.w.out; ++q) columns.push_back(s.w.tap<A>(q));
    scatter_planes<T>(dx, [&](int64_t n, int64_t c, A* plane) {
      for (int64_t p = 0; p < s.h.out; ++p) {
        auto [low, high, v] = s.h.tap<A>(p);
        A *above = plane + low * s.w.in, *below = plane + high * s.w.in;
        for (int64_t q = 0; q < s.w.out; ++q) {
          auto [left, right, u] = columns[q];
          A g = A(in.at(n, c)[p * in.h + q * in.w]);
          above[left] += (1 - v) * (1 - u) * g;
          above[right] += (1 - v) * u * g;
          below[left] += v * (1 - u) * g;
          below[right] += v * u * g;
        }
      }
    });
  });
}

}  // namespace xylem::cpu
