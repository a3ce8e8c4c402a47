// SPDX-License-Identifier: Apache-2.0
// Layer and RMS norm. Fast path: a row lives in the registers of a warp (up to 1024 columns) or of a block of 256
// threads (up to 8192). Other widths, f64 and unaligned rows take the plain kernels.
#include "core/device/device.h"
#include "ops/backend/vec.cuh"
#include "ops/norm/norm.h"

namespace xylem::cuda {
namespace {

constexpr int kHeld = 32;  // values of a row that a thread holds
constexpr int kBlock = 256;
template <int N>
using Int = std::integral_constant<int, N>;

template <class T>
struct ForwardArgs {
  using A = acc_t<T>;
  const T *x, *residual;
  T *sum, *y;
  const A *gain, *bias;
  A *mean, *rstd;
  int64_t rows;
  int cols;
  A eps;
};
template <class T>
struct BackwardArgs {
  using A = acc_t<T>;
  const T *dy, *dsum, *x;
  const A *gain, *mean, *rstd;
  T* dx;
  A* partial;  // [2, parts, cols]: columns' sums of dy * xhat and of dy
  int64_t rows;
  int cols;
};

template <int kGroup, class A>
__device__ A group_sum(A v, A* shared) {
  if constexpr (kGroup == kWarp)
    return warp_sum(v);
  else
    return block_sum(v, shared);
}

template <class T, int kGroup>
__global__ void __launch_bounds__(kGroup == kWarp ? 128 : kGroup) forward_held(ForwardArgs<T> a) {
  using A = acc_t<T>;
  constexpr int V = 16 / sizeof(T), kSteps = kHeld / V;
  __shared__ A shared[kWarp + 1];
  const int lane = threadIdx.x % kGroup;
  const int64_t row = int64_t(blockIdx.x) * (blockDim.x / kGroup) + threadIdx.x / kGroup;
  if (row >= a.rows) return;
  const int64_t base = row * a.cols;
  Vec<T, V> in[kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int c = (s * kGroup + lane) * V;
    if (c < a.cols) in[s] = load<V>(a.x + base + c);
  }
  if (a.residual) {
    Vec<T, V> other[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = (s * kGroup + lane) * V;
      if (c < a.cols) other[s] = load<V>(a.residual + base + c);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = (s * kGroup + lane) * V;
      if (c >= a.cols) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) in[s].v[i] = T(A(in[s].v[i]) + A(other[s].v[i]));
      store<V>(a.sum + base + c, in[s]);
    }
  }
  A mean = 0;
  if (a.mean) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      if ((s * kGroup + lane) * V < a.cols) {
#pragma unroll
        for (int i = 0; i < V; ++i) mean += A(in[s].v[i]);
      }
    mean = group_sum<kGroup>(mean, shared) / A(a.cols);
  }
  A square = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
    if ((s * kGroup + lane) * V < a.cols) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A d = A(in[s].v[i]) - mean;
        square += d * d;
      }
    }
  const A rstd = 1 / sqrt(group_sum<kGroup>(square, shared) / A(a.cols) + a.eps);
  if (lane == 0) {
    if (a.mean) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int c = (s * kGroup + lane) * V;
    if (c >= a.cols) continue;
    A gain[V], bias[V];
    if (a.gain) load_wide<V>(a.gain + c, gain);
    if (a.bias) load_wide<V>(a.bias + c, bias);
    Vec<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A h = (A(in[s].v[i]) - mean) * rstd;
      if (a.gain) h *= gain[i];
      if (a.bias) h += bias[i];
      out.v[i] = T(h);
    }
    store<V>(a.y + base + c, out);
  }
}

// Blocks of backward_held per multiprocessor: as many as fit without spilling registers.
template <class T>
constexpr int resident_blocks(int group, int held) {
  if (group == kWarp) return held == 24 && sizeof(T) == 2 ? 4 : 3;
  return held == 8 ? 4 : held == 16 ? 2 : 1;
}

// Persistent: a thread keeps its columns over many rows, and the columns' sums with them.
template <class T, int kGroup, int kHeld>
__global__ void __launch_bounds__(kGroup == kWarp ? 128 : kGroup, resident_blocks<T>(kGroup, kHeld))
    backward_held(BackwardArgs<T> a) {
  using A = acc_t<T>;
  constexpr int V = 16 / sizeof(T), kSteps = kHeld / V;
  __shared__ A shared[kWarp + 1];
  extern __shared__ char columns_raw[];
  const int lane = threadIdx.x % kGroup, group = threadIdx.x / kGroup, groups = blockDim.x / kGroup;
  A sum_gain[kHeld] = {}, sum_bias[kHeld] = {};
  for (int64_t row = int64_t(blockIdx.x) * groups + group; row < a.rows; row += int64_t(gridDim.x) * groups) {
    const int64_t base = row * a.cols;
    Vec<T, V> x[kSteps], dy[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = (s * kGroup + lane) * V;
      if (c >= a.cols) continue;
      x[s] = load<V>(a.x + base + c);
      dy[s] = load<V>(a.dy + base + c);
    }
    const A mean = a.mean ? a.mean[row] : A(0), rstd = a.rstd[row];
    A along_one = 0, along_x = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = (s * kGroup + lane) * V;
      if (c >= a.cols) continue;
      A gain[V];
      if (a.gain) load_wide<V>(a.gain + c, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A xhat = (A(x[s].v[i]) - mean) * rstd, d = A(dy[s].v[i]), g = a.gain ? d * gain[i] : d;
        sum_gain[s * V + i] += d * xhat;
        sum_bias[s * V + i] += d;
        along_one += g;
        along_x += g * xhat;
      }
    }
    along_x = group_sum<kGroup>(along_x, shared) / A(a.cols);
    along_one = a.mean ? group_sum<kGroup>(along_one, shared) / A(a.cols) : A(0);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = (s * kGroup + lane) * V;
      if (c >= a.cols) continue;
      A gain[V];
      if (a.gain) load_wide<V>(a.gain + c, gain);
      Vec<T, V> extra, out;
      if (a.dsum) extra = load<V>(a.dsum + base + c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A xhat = (A(x[s].v[i]) - mean) * rstd, d = A(dy[s].v[i]), g = a.gain ? d * gain[i] : d;
        A dx = rstd * (g - along_one - xhat * along_x);
        if (a.dsum) dx += A(extra.v[i]);
        out.v[i] = T(dx);
      }
      store<V>(a.dx + base + c, out);
    }
  }
  if (!a.partial) return;
  A* parts[2] = {a.partial + int64_t(blockIdx.x) * a.cols, a.partial + (int64_t(gridDim.x) + blockIdx.x) * a.cols};
  if constexpr (kGroup == kWarp) {
    // Warps add to the block's columns one after the other: the order is fixed.
    A* columns = reinterpret_cast<A*>(columns_raw);
    for (int turn = 0; turn < groups; ++turn) {
      if (group == turn) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const int c = (s * kGroup + lane) * V + i;
            if (c >= a.cols) continue;
            columns[c] = (turn ? columns[c] : A(0)) + sum_gain[s * V + i];
            columns[a.cols + c] = (turn ? columns[a.cols + c] : A(0)) + sum_bias[s * V + i];
          }
      }
      __syncthreads();
    }
    for (int c = threadIdx.x; c < a.cols; c += blockDim.x) {
      parts[0][c] = columns[c];
      parts[1][c] = columns[a.cols + c];
    }
  } else {
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int c = (s * kGroup + lane) * V + i;
        if (c >= a.cols) continue;
        parts[0][c] = sum_gain[s * V + i];
        parts[1][c] = sum_bias[s * V + i];
      }
  }
}

// A block per row, any width.
template <class T>
__global__ void __launch_bounds__(kBlock) forward_plain(ForwardArgs<T> a) {
  using A = acc_t<T>;
  __shared__ A shared[kWarp + 1];
  const int64_t row = blockIdx.x, base = row * a.cols;
  const T* h = a.x + base;
  if (a.residual) {
    for (int c = threadIdx.x; c < a.cols; c += blockDim.x)
      a.sum[base + c] = T(A(a.x[base + c]) + A(a.residual[base + c]));
    h = a.sum + base;  // a thread reads back what it wrote itself
  }
  A mean = 0, square = 0;
  if (a.mean) {
    for (int c = threadIdx.x; c < a.cols; c += blockDim.x) mean += A(h[c]);
    mean = block_sum(mean, shared) / A(a.cols);
  }
  for (int c = threadIdx.x; c < a.cols; c += blockDim.x) square += (A(h[c]) - mean) * (A(h[c]) - mean);
  const A rstd = 1 / sqrt(block_sum(square, shared) / A(a.cols) + a.eps);
  if (threadIdx.x == 0) {
    if (a.mean) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  for (int c = threadIdx.x; c < a.cols; c += blockDim.x)
    a.y[base + c] = T((A(h[c]) - mean) * rstd * (a.gain ? a.gain[c] : A(1)) + (a.bias ? a.bias[c] : A(0)));
}

template <class T>
__global__ void __launch_bounds__(kBlock) backward_plain(BackwardArgs<T> a) {
  using A = acc_t<T>;
  __shared__ A shared[kWarp + 1];
  const int64_t row = blockIdx.x, base = row * a.cols;
  const A mean = a.mean ? a.mean[row] : A(0), rstd = a.rstd[row];
  A along_one = 0, along_x = 0;
  for (int c = threadIdx.x; c < a.cols; c += blockDim.x) {
    const A g = A(a.dy[base + c]) * (a.gain ? a.gain[c] : A(1));
    along_one += g;
    along_x += g * (A(a.x[base + c]) - mean) * rstd;
  }
  along_x = block_sum(along_x, shared) / A(a.cols);
  along_one = a.mean ? block_sum(along_one, shared) / A(a.cols) : A(0);
  for (int c = threadIdx.x; c < a.cols; c += blockDim.x) {
    const A g = A(a.dy[base + c]) * (a.gain ? a.gain[c] : A(1)), xhat = (A(a.x[base + c]) - mean) * rstd;
    a.dx[base + c] = T((a.dsum ? A(a.dsum[base + c]) : A(0)) + rstd * (g - along_one - xhat * along_x));
  }
}

// Sums over the rows blockIdx.y, blockIdx.y + gridDim.y, .. of one column per thread.
template <class T>
__global__ void __launch_bounds__(kBlock) columns_plain(BackwardArgs<T> a) {
  using A = acc_t<T>;
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= a.cols) return;
  A gain = 0, bias = 0;
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const A d = A(a.dy[row * a.cols + c]);
    gain += d * (A(a.x[row * a.cols + c]) - (a.mean ? a.mean[row] : A(0))) * a.rstd[row];
    bias += d;
  }
  a.partial[int64_t(blockIdx.y) * a.cols + c] = gain;
  a.partial[(int64_t(gridDim.y) + blockIdx.y) * a.cols + c] = bias;
}

// partial [2, parts, cols] -> dgain (blockIdx.y 0) and dbias (1), in a fixed order.
template <class A>
__global__ void __launch_bounds__(kBlock) reduce_columns(const A* partial, int64_t parts, int cols, A* dgain, A* dbias,
                                                         bool accumulate_gain, bool accumulate_bias) {
  constexpr int kRows = kBlock / kWarp;
  __shared__ A sums[kRows][kWarp + 1];
  A* out = blockIdx.y == 0 ? dgain : dbias;
  if (!out) return;
  const bool accumulate = blockIdx.y == 0 ? accumulate_gain : accumulate_bias;
  const int lane = threadIdx.x % kWarp, r = threadIdx.x / kWarp, c = blockIdx.x * kWarp + lane;
  A sum = 0;
  if (c < cols)
#pragma unroll 4
    for (int64_t p = r; p < parts; p += kRows) sum += partial[(blockIdx.y * parts + p) * cols + c];
  sums[r][lane] = sum;
  __syncthreads();
  if (r != 0 || c >= cols) return;
  A total = accumulate ? out[c] : A(0);
#pragma unroll
  for (int k = 0; k < kRows; ++k) total += sums[k][lane];
  out[c] = total;
}

}  // namespace

void row_norm(const RowNorm& n) {
  const int64_t cols = n.x.size(-1), rows = n.x.numel() / cols;
  cudaStream_t stream = cuda_stream(n.x.device());
  visit_float(n.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    ForwardArgs<T> a{pointer<T>(n.x),
                     pointer<T>(n.residual),
                     pointer<T>(n.sum),
                     pointer<T>(n.y),
                     pointer<A>(n.gain),
                     pointer<A>(n.bias),
                     pointer<A>(n.mean),
                     pointer<A>(n.rstd),
                     rows,
                     int(cols),
                     A(n.eps)};
    if constexpr (sizeof(T) <= 4) {
      constexpr int V = 16 / sizeof(T);
      if (cols % V == 0 && cols <= kHeld * kBlock && all_aligned16(a.x, a.residual, a.sum, a.y, a.gain, a.bias)) {
        if (cols <= kHeld * kWarp)
          forward_held<T, kWarp><<<unsigned((rows + 3) / 4), 128, 0, stream>>>(a);
        else
          forward_held<T, kBlock><<<unsigned(rows), kBlock, 0, stream>>>(a);
        return;
      }
    }
    forward_plain<T><<<unsigned(rows), kBlock, 0, stream>>>(a);
  });
  XY_CUDA(cudaGetLastError());
}

void row_norm_backward(const RowNormGrad& n) {
  const int64_t cols = n.x.size(-1), rows = cols == 0 ? 0 : n.x.numel() / cols;
  if (rows == 0) {
    if (n.dgain.defined() && !n.accumulate_gain) n.dgain.zero_();
    if (n.dbias.defined() && !n.accumulate_bias) n.dbias.zero_();
    return;
  }
  const Device device = n.x.device();
  cudaStream_t stream = cuda_stream(device);
  const bool sums = n.dgain.defined() || n.dbias.defined();
  visit_float(n.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    BackwardArgs<T> a{pointer<T>(n.dy),
                      pointer<T>(n.dsum),
                      pointer<T>(n.x),
                      pointer<A>(n.gain),
                      pointer<A>(n.mean),
                      pointer<A>(n.rstd),
                      pointer<T>(n.dx),
                      nullptr,
                      rows,
                      int(cols)};
    Tensor partial;
    auto make_partial = [&](int64_t parts) {
      if (!sums) return;
      partial = empty({2, parts, cols}, n.rstd.dtype(), device);
      a.partial = partial.data<A>();
    };
    int64_t parts = 0;
    if constexpr (sizeof(T) <= 4) {
      constexpr int V = 16 / sizeof(T);
      if (cols % V == 0 && cols <= kHeld * kBlock && all_aligned16(a.x, a.dy, a.dsum, a.dx, a.gain)) {
        auto launch = [&](auto group, auto held) {
          constexpr int kGroup = decltype(group)::value, kPer = decltype(held)::value;
          const bool warp = kGroup == kWarp;
          parts = std::min<int64_t>(warp ? (rows + 3) / 4 : rows,
                                    int64_t(multiprocessors(device)) * resident_blocks<T>(kGroup, kPer));
          make_partial(parts);
          backward_held<T, kGroup, kPer>
              <<<unsigned(parts), warp ? 128 : kGroup, warp ? 2 * cols * sizeof(A) : 0, stream>>>(a);
        };
        if (cols <= 24 * kWarp)
          launch(Int<kWarp>{}, Int<24>{});
        else if (cols <= 32 * kWarp)
          launch(Int<kWarp>{}, Int<32>{});
        else if (cols <= 8 * kBlock)
          launch(Int<kBlock>{}, Int<8>{});
        else if (cols <= 16 * kBlock)
          launch(Int<kBlock>{}, Int<16>{});
        else
          launch(Int<kBlock>{}, Int<32>{});
      }
    }
    if (parts == 0) {
      backward_plain<T><<<unsigned(rows), kBlock, 0, stream>>>(a);
      if (sums) {
        const int64_t tiles = (cols + kBlock - 1) / kBlock;
        parts = std::clamp<int64_t>(4 * multiprocessors(device) / tiles, 1, std::min<int64_t>(rows, 1024));
        make_partial(parts);
        columns_plain<T><<<dim3(unsigned(tiles), unsigned(parts)), kBlock, 0, stream>>>(a);
      }
    }
    XY_CUDA(cudaGetLastError());
    if (sums)
      reduce_columns<A><<<dim3(unsigned((cols + kWarp - 1) / kWarp), 2), kBlock, 0, stream>>>(
          a.partial, parts, int(cols), pointer<A>(n.dgain), pointer<A>(n.dbias), n.accumulate_gain, n.accumulate_bias);
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
