// SPDX-License-Identifier: Apache-2.0
// Convolution on the CPU without im2col. An image is laid out once with its padding, split into stride x stride phases;
// then every filter tap (channel, r, s) reads the same flat run of pixels at a fixed offset, and a row of the output
// image continues in the next one. All three passes are small matrix products over these offsets:
//   forward        y[k, i]   = sum over taps t of w[k, t] * image[offset[t] + i]
//   data gradient  dx[c, i]  = sum over (k, r, s) of w[k, c, r, s] * dy[k, i - shift(r, s)], one phase at a time
//   weights        dw[k, t]  = sum over pixels i of dy[k, i] * image[offset[t] + i]
// Rows are `pitch` apart, a little wider than the output: the pixels in the gap are computed and dropped.
#include <cstring>
#include <utility>
#include <vector>

#include "core/util/parallel.h"
#include "ops/conv/conv.h"
#include "ops/conv/image.h"

namespace xylem::cpu {
namespace {

#ifdef __AVX512F__
constexpr int kVectorBytes = 64, kRows = 8, kDotRows = 4, kDotTaps = 6;
#else
constexpr int kVectorBytes = 32, kRows = 4, kDotRows = 2, kDotTaps = 4;
#endif
constexpr int kVectors = 3;
template <class A>
struct Simd {
  using Vec [[gnu::vector_size(kVectorBytes), gnu::aligned(alignof(A)), gnu::may_alias]] = A;
  static constexpr int lanes = kVectorBytes / sizeof(A);
};
template <class A>
constexpr int64_t kColumns = kVectors* Simd<A>::lanes;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

int64_t phases(const ConvShape& s) { return int64_t(s.stride[0]) * s.stride[1]; }
int64_t phase_of(const ConvShape& s, int64_t r, int64_t c) {
  return r * s.dilation[0] % s.stride[0] * s.stride[1] + c * s.dilation[1] % s.stride[1];
}

// The flat layout of an image of this convolution.
struct Layout {
  int64_t rows, pitch, plane;  // of one phase of one channel
  int64_t margin;              // zeros before a gradient plane: the largest shift
  int64_t out_length;          // flat pixels from the first to the last output pixel
  std::vector<int64_t> used;   // the phases that some tap reads; only these are laid out
  explicit Layout(const ConvShape& s)
      : rows(blocks_of(s.h + 2 * s.padding[0], s.stride[0])),
        pitch(blocks_of(s.w + 2 * s.padding[1], s.stride[1])),
        plane(rows * pitch),
        margin(shift(s, s.r - 1, s.s - 1)),
        out_length((s.p - 1) * pitch + s.q) {
    for (int64_t r = 0; r < s.r; ++r)
      for (int64_t c = 0; c < s.s; ++c)
        if (slot(phase_of(s, r, c)) == int64_t(used.size())) used.push_back(phase_of(s, r, c));
  }
  int64_t slot(int64_t phase) const { return std::find(used.begin(), used.end(), phase) - used.begin(); }
  int64_t channel() const { return plane * int64_t(used.size()); }
  int64_t shift(const ConvShape& s, int64_t r, int64_t c) const {
    return r * s.dilation[0] / s.stride[0] * pitch + c * s.dilation[1] / s.stride[1];
  }
};
// The correspondence of plane [rows, pitch] and image [h, w]: plane (i, j) is image (i*step_h + top, j*step_w + left).
struct Window {
  int64_t rows, pitch, h, w, step_h, step_w, top, left;
  // Calls f(plane index, image row, image column, count) for every run of pixels inside the image.
  template <class F>
  void runs(F&& f) const {
    int64_t first = left < 0 ? blocks_of(-left, step_w) : 0;
    int64_t last = std::min(pitch, left < w ? blocks_of(w - left, step_w) : 0);
    for (int64_t i = 0; i < rows; ++i) {
      int64_t row = i * step_h + top;
      if (row >= 0 && row < h && last > first) f(i * pitch + first, row, first * step_w + left, last - first);
    }
  }
};
Window whole(const Layout& l, int64_t h, int64_t w) { return {l.rows, l.pitch, h, w, 1, 1, 0, 0}; }
Window phase_window(const ConvShape& s, const Layout& l, int64_t phase) {
  return {l.rows,
          l.pitch,
          s.h,
          s.w,
          s.stride[0],
          s.stride[1],
          phase / s.stride[1] - s.padding[0],
          phase % s.stride[1] - s.padding[1]};
}

template <class T, class A>
void load_plane(const Window& window, const T* image, int64_t stride_h, int64_t stride_w, A* plane) {
  window.runs([&](int64_t at, int64_t row, int64_t column, int64_t count) {
    const T* from = image + row * stride_h + column * stride_w;
    int64_t step = window.step_w * stride_w;
    if (std::is_same_v<T, A> && step == 1)
      std::memcpy(plane + at, from, size_t(count) * sizeof(T));
    else
      for (int64_t j = 0; j < count; ++j) plane[at + j] = A(from[j * step]);
  });
}
template <class T, class A>
void store_plane(const Window& window, const A* plane, T* image, int64_t stride_h, int64_t stride_w) {
  window.runs([&](int64_t at, int64_t row, int64_t column, int64_t count) {
    T* to = image + row * stride_h + column * stride_w;
    int64_t step = window.step_w * stride_w;
    if (std::is_same_v<T, A> && step == 1)
      std::memcpy(to, plane + at, size_t(count) * sizeof(T));
    else
      for (int64_t j = 0; j < count; ++j) to[j * step] = T(plane[at + j]);
  });
}

// A matrix [rows, taps] in blocks of R rows: block, tap, row.
template <class A>
struct Filter {
  int64_t rows = 0, block = 1;
  std::vector<int64_t> offset;  // per tap
  std::vector<A> values;
  template <class F>
  Filter(int64_t rows, std::vector<int64_t> offsets, F&& value)
      : rows(rows), block(rows == 1 ? 1 : kRows), offset(std::move(offsets)) {
    int64_t taps = int64_t(offset.size());
    values.assign(blocks_of(rows, block) * block * taps, A(0));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t t = 0; t < taps; ++t) values[(i / block * taps + t) * block + i % block] = value(i, t);
  }
};

// f(0), f(1), .. f(N-1), spelled out, so that small arrays of vectors stay in registers.
template <int N, class F>
[[gnu::always_inline]] inline void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, N>());
}

template <class A, int R, int V>
void correlate(const A* weights, const int64_t* offset, int64_t taps, const A* image, A* out, int64_t ld) {
  using Vec = typename Simd<A>::Vec;
  constexpr int lanes = Simd<A>::lanes;
  Vec sum[R * V];
  unroll<R * V>([&](auto i) { sum[i] = Vec{}; });
  for (int64_t t = 0; t < taps; ++t, weights += R) {
    const A* from = image + offset[t];
    Vec x[V];
    unroll<V>([&](auto v) { x[v] = *reinterpret_cast<const Vec*>(from + v * lanes); });
    unroll<R>([&](auto i) {
      Vec w = weights[i] - Vec{};
      unroll<V>([&](auto v) { sum[i * V + v] += w * x[v]; });
    });
  }
  unroll<R * V>([&](auto i) { *reinterpret_cast<Vec*>(out + i / V * ld + i % V * lanes) = sum[i]; });
}

// out[row, i] for i in [begin, begin + length) rounded up to whole vectors; out has rows of `ld` and whole row blocks.
template <class A>
void apply(const Filter<A>& filter, const A* image, int64_t begin, int64_t length, A* out, int64_t ld) {
  using Kernel = void (*)(const A*, const int64_t*, int64_t, const A*, A*, int64_t);
  constexpr Kernel kernels[2][kVectors] = {{correlate<A, 1, 1>, correlate<A, 1, 2>, correlate<A, 1, 3>},
                                           {correlate<A, kRows, 1>, correlate<A, kRows, 2>, correlate<A, kRows, 3>}};
  int64_t taps = int64_t(filter.offset.size()), row_blocks = blocks_of(filter.rows, filter.block);
  parallel_for(blocks_of(length, kColumns<A>) * row_blocks, 16, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      int64_t i = item / row_blocks * kColumns<A>, row = item % row_blocks * filter.block;
      int64_t vectors = std::min<int64_t>(kVectors, blocks_of(length - i, Simd<A>::lanes));
      kernels[filter.block > 1][vectors - 1](filter.values.data() + row * taps, filter.offset.data(), taps,
                                             image + begin + i, out + row * ld + begin + i, ld);
    }
  });
}

// Memory for planes, zero at first. Loading an image leaves the padding as it is, so it need not be cleared again.
template <class A>
A* scratch(Tensor& holder, int64_t elements) {
  holder = empty({elements + kColumns<A>}, dtype_of<A>);
  std::memset(holder.raw(), 0, holder.nbytes());
  return holder.data<A>();
}

std::vector<int64_t> input_offsets(const ConvShape& s, const Layout& l) {
  std::vector<int64_t> offsets;
  for (int64_t c = 0; c < s.c / s.groups; ++c)
    for (int64_t i = 0; i < s.r; ++i)
      for (int64_t j = 0; j < s.s; ++j)
        offsets.push_back(c * l.channel() + l.slot(phase_of(s, i, j)) * l.plane + l.shift(s, i, j));
  return offsets;
}
template <class T, class A>
void load_channel(const ConvShape& s, const Layout& l, const T* image, int64_t stride_h, int64_t stride_w, A* planes) {
  for (size_t i = 0; i < l.used.size(); ++i)
    load_plane(phase_window(s, l, l.used[i]), image, stride_h, stride_w, planes + int64_t(i) * l.plane);
}

template <class T>
void forward(const Tensor& x, const T* w, const Tensor& y, const ConvShape& s) {
  using A = acc_t<T>;
  Layout l(s);
  int64_t cg = s.c / s.groups, kg = s.k / s.groups, taps = cg * s.r * s.s;
  std::vector<Filter<A>> filters;
  for (int64_t g = 0; g < s.groups; ++g)
    filters.emplace_back(kg, input_offsets(s, l), [&](int64_t k, int64_t t) { return A(w[(g * kg + k) * taps + t]); });
  ImageView<T> in(x), out(y);
  int64_t ld = round_up(l.out_length, kColumns<A>);
  parallel_for(s.n, 1, [&](int64_t begin, int64_t end) {
    Tensor hold_image, hold_result;
    A* image = scratch<A>(hold_image, cg * l.channel());
    A* result = scratch<A>(hold_result, round_up(kg, kRows) * ld);
    for (int64_t n = begin; n < end; ++n)
      for (int64_t g = 0; g < s.groups; ++g) {
        for (int64_t c = 0; c < cg; ++c) load_channel(s, l, in.at(n, g * cg + c), in.h, in.w, image + c * l.channel());
        apply(filters[g], image, 0, l.out_length, result, ld);
        for (int64_t k = 0; k < kg; ++k)
          store_plane(whole(l, s.p, s.q), result + k * ld, out.at(n, g * kg + k), out.h, out.w);
      }
  });
}

template <class T>
void backward_data(const Tensor& dy, const T* w, const Tensor& dx, const ConvShape& s) {
  using A = acc_t<T>;
  Layout l(s);
  int64_t cg = s.c / s.groups, kg = s.k / s.groups, dy_plane = l.margin + l.plane;
  std::vector<Filter<A>> filters;  // group, phase
  for (int64_t g = 0; g < s.groups; ++g)
    for (int64_t phase = 0; phase < phases(s); ++phase) {
      std::vector<int64_t> offsets, source;
      for (int64_t k = 0; k < kg; ++k)
        for (int64_t i = 0; i < s.r; ++i)
          for (int64_t j = 0; j < s.s; ++j)
            if (phase_of(s, i, j) == phase) {
              offsets.push_back(k * dy_plane + l.margin - l.shift(s, i, j));
              source.push_back((g * kg + k) * cg * s.r * s.s + i * s.s + j);
            }
      filters.emplace_back(cg, std::move(offsets),
                           [&](int64_t c, int64_t t) { return A(w[source[t] + c * s.r * s.s]); });
    }
  ImageView<T> in(dy), out(dx);
  int64_t ld = round_up(l.plane, kColumns<A>) + kColumns<A>;
  parallel_for(s.n, 1, [&](int64_t begin, int64_t end) {
    Tensor hold_dy, hold_result;
    A* gradient = scratch<A>(hold_dy, kg * dy_plane);
    A* result = scratch<A>(hold_result, round_up(cg, kRows) * ld);
    for (int64_t n = begin; n < end; ++n)
      for (int64_t g = 0; g < s.groups; ++g) {
        for (int64_t k = 0; k < kg; ++k) {
          load_plane(whole(l, s.p, s.q), in.at(n, g * kg + k), in.h, in.w, gradient + k * dy_plane + l.margin);
        }
        for (int64_t phase = 0; phase < phases(s); ++phase) {
          int64_t first = s.padding[0] / s.stride[0] * l.pitch;  // rows above hold padding alone
          apply(filters[g * phases(s) + phase], gradient, first, l.plane - first, result, ld);
          for (int64_t c = 0; c < cg; ++c)
            store_plane(phase_window(s, l, phase), result + c * ld, out.at(n, g * cg + c), out.h, out.w);
        }
      }
  });
}

// Lane j of the result: lanes j and j^H added, of `a` where bit H of j is clear and of `b` where it is set.
template <int H, class Vec, int... J>
Vec fold(Vec a, Vec b, std::integer_sequence<int, J...>) {
  constexpr int lanes = sizeof...(J);
  return __builtin_shufflevector(a, b, (J & H ? lanes + J : J)...) +
         __builtin_shufflevector(a, b, (J & H ? lanes + (J ^ H) : (J ^ H))...);
}
// Lane j of v[0] becomes the sum of the lanes of v[j].
template <class A, int H = Simd<A>::lanes / 2>
[[gnu::always_inline]] inline void sum_lanes(typename Simd<A>::Vec* v) {
  unroll<H>([&](auto i) { v[i] = fold<H>(v[i], v[i + H], std::make_integer_sequence<int, Simd<A>::lanes>()); });
  if constexpr (H > 1) sum_lanes<A, H / 2>(v);
}

// sum[i][j] over images and pixels of dy[i] * image[offset[j]], added to out[i * ld + j].
template <class A, int R>
void dot(const A* dy, int64_t dy_plane, int64_t dy_image, const A* image, int64_t image_size, const int64_t* offset,
         int64_t taps, int64_t images, int64_t length, A* out, int64_t ld) {
  using Vec = typename Simd<A>::Vec;
  constexpr int lanes = Simd<A>::lanes, groups = (R * kDotTaps + lanes - 1) / lanes;
  int64_t at[kDotTaps];
  unroll<kDotTaps>([&](auto j) { at[j] = offset[std::min<int64_t>(j, taps - 1)]; });
  Vec sum[groups * lanes];
  unroll<groups * lanes>([&](auto i) { sum[i] = Vec{}; });
  for (int64_t n = 0; n < images; ++n, dy += dy_image, image += image_size)
    for (int64_t p = 0; p < length; p += lanes) {
      Vec g[R];
      unroll<R>([&](auto i) { g[i] = *reinterpret_cast<const Vec*>(dy + i * dy_plane + p); });
      unroll<kDotTaps>([&](auto j) {
        Vec v = *reinterpret_cast<const Vec*>(image + at[j] + p);
        unroll<R>([&](auto i) { sum[i * kDotTaps + j] += g[i] * v; });
      });
    }
  A totals[groups * lanes];
  unroll<groups>([&](auto i) {
    sum_lanes<A>(sum + i * lanes);
    *reinterpret_cast<Vec*>(totals + i * lanes) = sum[i * lanes];
  });
  for (int i = 0; i < R; ++i)
    for (int64_t j = 0; j < taps; ++j) out[i * ld + j] += totals[i * kDotTaps + j];
}

// Adds the weight gradient of images [begin, end) to total [K, taps].
template <class T, class A>
void add_weight_gradient(const ImageView<T>& x, const ImageView<T>& dy, const ConvShape& s, const Layout& l,
                         const std::vector<int64_t>& offsets, int64_t begin, int64_t end, A* total) {
  int64_t cg = s.c / s.groups, kg = s.k / s.groups, taps = int64_t(offsets.size());
  int64_t dy_plane = round_up(l.out_length, Simd<A>::lanes), image_size = s.c * l.channel(), dy_image = s.k * dy_plane;
  // As many images at a time as stay in the cache.
  int64_t batch = std::clamp<int64_t>((1 << 20) / int64_t(sizeof(A) * (image_size + dy_image)), 1, end - begin);
  Tensor hold_image, hold_dy;
  A* image = scratch<A>(hold_image, batch * image_size);
  A* gradient = scratch<A>(hold_dy, batch * dy_image);
  int64_t tap_blocks = blocks_of(taps, kDotTaps), row_blocks = blocks_of(kg, kDotRows);
  for (int64_t n0 = begin; n0 < end; n0 += batch) {
    int64_t images = std::min(batch, end - n0);
    parallel_for(images * (s.c + s.k), 8, [&](int64_t first, int64_t last) {
      for (int64_t item = first; item < last; ++item) {
        int64_t n = item / (s.c + s.k), c = item % (s.c + s.k);
        if (c < s.c) {
          load_channel(s, l, x.at(n0 + n, c), x.h, x.w, image + n * image_size + c * l.channel());
        } else {
          A* plane = gradient + n * dy_image + (c - s.c) * dy_plane;
          load_plane(whole(l, s.p, s.q), dy.at(n0 + n, c - s.c), dy.h, dy.w, plane);
        }
      }
    });
    parallel_for(s.groups * tap_blocks * row_blocks, 4, [&](int64_t first, int64_t last) {
      for (int64_t item = first; item < last; ++item) {
        int64_t g = item / (tap_blocks * row_blocks), t = item / row_blocks % tap_blocks * kDotTaps,
                k = g * kg + item % row_blocks * kDotRows, rows = std::min<int64_t>(kDotRows, (g + 1) * kg - k);
        auto run = [&](auto kernel, int64_t row) {
          kernel(gradient + row * dy_plane, dy_plane, dy_image, image + g * cg * l.channel(), image_size,
                 offsets.data() + t, std::min<int64_t>(kDotTaps, taps - t), images, dy_plane, total + row * taps + t,
                 taps);
        };
        if (rows == kDotRows)
          run(dot<A, kDotRows>, k);
        else
          for (int64_t i = 0; i < rows; ++i) run(dot<A, 1>, k + i);
      }
    });
  }
}

template <class T>
void backward_weight(const Tensor& x, const Tensor& dy, T* dw, const ConvShape& s) {
  using A = acc_t<T>;
  Layout l(s);
  std::vector<int64_t> offsets = input_offsets(s, l);
  ImageView<T> in(x), gradient(dy);
  // Chunks of images are summed apart and then in order. Their number depends on the shapes alone; large weights have
  // one chunk and are shared out by rows instead.
  int64_t size = s.k * int64_t(offsets.size());
  int64_t chunks = std::clamp<int64_t>((int64_t(4) << 20) / size, 1, std::clamp<int64_t>(s.n / 8, 1, 16));
  Tensor partial = empty({chunks, size}, dtype_of<A>);
  A* sums = partial.data<A>();
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    std::fill(sums + begin * size, sums + end * size, A(0));
    for (int64_t c = begin; c < end; ++c)
      add_weight_gradient(in, gradient, s, l, offsets, c * s.n / chunks, (c + 1) * s.n / chunks, sums + c * size);
  });
  parallel_for(size, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t c = 1; c < chunks; ++c)
      for (int64_t i = begin; i < end; ++i) sums[i] += sums[c * size + i];
    for (int64_t i = begin; i < end; ++i) dw[i] = T(sums[i]);
  });
}

}  // namespace

void conv_forward(const Tensor& x, const Tensor& w, const Tensor& y, const ConvShape& s) {
  Tensor filter = w.contiguous();
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    forward<T>(x, filter.data<T>(), y, s);
  });
}

void conv_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const ConvShape& s) {
  Tensor filter = w.contiguous();
  visit_float(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    backward_data<T>(dy, filter.data<T>(), dx, s);
  });
}

void conv_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, const ConvShape& s) {
  XY_ASSERT(dw.is_contiguous());
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    backward_weight<T>(x, dy, dw.data<T>(), s);
  });
}

void add_channel_bias(const Tensor& y, const Tensor& bias) {
  visit_float(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ImageView<T> out(y);
    const T* b = bias.data<T>();
    int64_t channels = y.size(1), rows = y.size(2), columns = y.size(3);
    parallel_for(y.size(0) * channels, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c) {
            T& value = out.at(i / channels, i % channels)[r * out.h + c * out.w];
            value = T(acc_t<T>(value) + acc_t<T>(b[i % channels]));
          }
    });
  });
}

}  // namespace xylem::cpu
