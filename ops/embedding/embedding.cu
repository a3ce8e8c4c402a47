// SPDX-License-Identifier: Apache-2.0
// Gradients are summed without atomics: indices are sorted together with their positions (a stable radix sort), then
// every run of equal indices is added in order. Long runs are cut into fixed chunks whose sums are added afterwards.
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "core/tensor/visit_width.h"
#include "ops/backend/vec.cuh"
#include "ops/embedding/embedding.h"

namespace xylem::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kChunk = 64;  // sorted rows summed by one block

// The bytes of a row in units of T.
template <class T>
__global__ void __launch_bounds__(kBlock)
    take_rows_kernel(const T* x, const int64_t* index, T* out, Lanes l, int64_t count, FaultSink fault) {
  const int64_t total = l.outer * count * l.inner;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t row, k, o, j;
    divide(i, l.inner, row, k);
    divide(row, count, o, j);
    const int64_t at = index[j];
    if (at < 0 || at >= l.size) {
      if (k == 0) fault.note(at, l.size);
      out[i] = T{};
    } else {
      out[i] = x[(o * l.size + at) * l.inner + k];
    }
  }
}

__global__ void __launch_bounds__(kBlock)
    make_row_keys(const int64_t* index, int64_t count, int64_t size, uint64_t* keys, int64_t* positions) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t at = index[i];
    keys[i] = at < 0 || at >= size ? uint64_t(size) : uint64_t(at);  // bad indices go last and are left out
    positions[i] = i;
  }
}

// Sorted keys and the positions they came from.
struct Sorted {
  Tensor keys, positions;
};

// `bound`: the largest key.
Sorted sort(Tensor keys, Tensor positions, uint64_t bound) {
  const Device device = keys.device();
  const int64_t count = keys.numel();
  Sorted sorted{empty({count}, i64, device), empty({count}, i64, device)};
  auto* key_in = static_cast<uint64_t*>(keys.raw());
  auto* key_out = static_cast<uint64_t*>(sorted.keys.raw());
  auto *value_in = positions.data<int64_t>(), *value_out = sorted.positions.data<int64_t>();
  const int bits = std::max(1, int(std::bit_width(bound)));
  size_t bytes = 0;
  XY_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, key_in, key_out, value_in, value_out, count, 0, bits,
                                          cuda_stream(device)));
  Tensor workspace = empty({int64_t(bytes)}, u8, device);
  XY_CUDA(cub::DeviceRadixSort::SortPairs(workspace.raw(), bytes, key_in, key_out, value_in, value_out, count, 0, bits,
                                          cuda_stream(device)));
  return sorted;
}

template <class T, class O>
struct SumArgs {
  using A = acc_t<T>;
  const T* rows;
  const uint64_t* keys;
  const int64_t* positions;
  O* out;
  A* partial;  // [2, outer, chunks, inner]: the run that came from the left, the run that goes on to the right
  Lanes lanes;
  int64_t count, chunks;
};

template <class O, class A, int V>
__device__ void add_to(O* out, const A (&sum)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) out[i] = O(A(out[i]) + sum[i]);
}

// A block sums the runs of one chunk; a thread owns V columns. Runs that stay inside the chunk are finished.
template <class T, class O, int V>
__global__ void __launch_bounds__(kBlock) sum_chunks(SumArgs<T, O> a) {
  using A = acc_t<T>;
  __shared__ uint64_t keys[kChunk + 2];  // one neighbour on either side
  __shared__ int64_t positions[kChunk];
  const int64_t chunk = blockIdx.x, o = blockIdx.z, first = chunk * kChunk;
  const int n = int(min(int64_t(kChunk), a.count - first));
  constexpr uint64_t kNone = ~uint64_t(0);
  for (int i = threadIdx.x; i < n + 2; i += blockDim.x) {
    const int64_t at = first + i - 1;
    keys[i] = at >= 0 && at < a.count ? a.keys[at] : kNone;
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) positions[i] = a.positions[first + i];
  __syncthreads();
  const int64_t c = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * V;
  if (c >= a.lanes.inner) return;
  const T* rows = a.rows + o * a.count * a.lanes.inner + c;
  const int64_t side = a.lanes.outer * a.chunks * a.lanes.inner;
  A* partial = a.partial + (o * a.chunks + chunk) * a.lanes.inner + c;
  A sum[V] = {};
  bool from_left = keys[0] == keys[1];
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    const Vec<T, V> row = load<V>(rows + positions[i] * a.lanes.inner);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += A(row.v[k]);
    if (i + 1 < n && keys[i + 2] == keys[i + 1]) continue;
    const uint64_t key = keys[i + 1];
    const bool to_right = i + 1 == n && keys[i + 2] == key;
    if (from_left || to_right) {
      store_wide<V>(from_left ? partial : partial + side, sum);
    } else if (key < uint64_t(a.lanes.size)) {
      add_to<O, A, V>(a.out + (o * a.lanes.size + int64_t(key)) * a.lanes.inner + c, sum);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = 0;
    from_left = false;
  }
}

// Runs that cross chunks: the block of the chunk where the run begins adds the pieces from left to right.
template <class T, class O, int V>
__global__ void __launch_bounds__(kBlock) sum_runs(SumArgs<T, O> a) {
  using A = acc_t<T>;
  const int64_t chunk = blockIdx.x, o = blockIdx.z, last = min(a.count, (chunk + 1) * kChunk);
  if (last == a.count) return;
  const uint64_t key = a.keys[last - 1];
  if (a.keys[last] != key || key >= uint64_t(a.lanes.size)) return;
  // The run began in an earlier chunk if it reaches back over this one's left edge.
  if (chunk > 0 && a.keys[chunk * kChunk - 1] == key) return;
  const int64_t c = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * V;
  if (c >= a.lanes.inner) return;
  const int64_t side = a.lanes.outer * a.chunks * a.lanes.inner;
  const A* partial = a.partial + o * a.chunks * a.lanes.inner + c;
  A sum[V], piece[V];
  load_wide<V>(partial + side + chunk * a.lanes.inner, sum);
#pragma unroll 4
  for (int64_t next = chunk + 1; next < a.chunks; ++next) {
    if (a.keys[next * kChunk] != key) break;
    load_wide<V>(partial + next * a.lanes.inner, piece);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += piece[k];
  }
  add_to<O, A, V>(a.out + (o * a.lanes.size + int64_t(key)) * a.lanes.inner + c, sum);
}

template <class T, class O>
void add_sorted(const Tensor& rows, const Sorted& sorted, const Tensor& out, Lanes lanes) {
  using A = acc_t<T>;
  const Device device = rows.device();
  cudaStream_t stream = cuda_stream(device);
  const int64_t count = sorted.keys.numel(), chunks = (count + kChunk - 1) / kChunk;
  Tensor partial = empty({2, lanes.outer, chunks, lanes.inner}, rows.dtype() == f64 ? f64 : f32, device);
  SumArgs<T, O> a{pointer<T>(rows),
                  static_cast<const uint64_t*>(sorted.keys.raw()),
                  pointer<int64_t>(sorted.positions),
                  pointer<O>(out),
                  pointer<A>(partial),
                  lanes,
                  count,
                  chunks};
  auto launch = [&](auto width) {
    constexpr int V = decltype(width)::value;
    const int64_t threads = (lanes.inner + V - 1) / V;
    const unsigned block = unsigned(std::min<int64_t>(kBlock, (threads + kWarp - 1) / kWarp * kWarp));
    for (int64_t done = 0; done < lanes.outer; done += 65535) {
      // Blocks are numbered from 0 in every launch, so shift the pointers instead.
      SumArgs<T, O> part = a;
      part.rows += done * count * lanes.inner;
      part.out += done * lanes.size * lanes.inner;
      part.partial += done * chunks * lanes.inner;
      dim3 grid(unsigned(chunks), unsigned((threads + block - 1) / block),
                unsigned(std::min<int64_t>(65535, lanes.outer - done)));
      sum_chunks<T, O, V><<<grid, block, 0, stream>>>(part);
      XY_CUDA(cudaGetLastError());
      if (chunks > 1) sum_runs<T, O, V><<<grid, block, 0, stream>>>(part);
      XY_CUDA(cudaGetLastError());
    }
  };
  constexpr int V = 16 / sizeof(T);
  if (lanes.inner % V == 0 && all_aligned16(a.rows))
    launch(std::integral_constant<int, V>{});
  else
    launch(std::integral_constant<int, 1>{});
}

// ---- gather and scatter_add
// -------------------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kBlock)
    gather_kernel(const T* x, const int64_t* index, T* out, Lanes l, int64_t count, FaultSink fault) {
  const int64_t total = l.outer * count * l.inner;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t row, k, o, j;
    divide(i, l.inner, row, k);
    divide(row, count, o, j);
    const int64_t at = index[i];
    if (at < 0 || at >= l.size) {
      fault.note(at, l.size);
      out[i] = T{};
    } else {
      out[i] = x[(o * l.size + at) * l.inner + k];
    }
  }
}

__global__ void __launch_bounds__(kBlock) make_element_keys(const int64_t* index, Lanes l, int64_t count,
                                                            uint64_t* keys, int64_t* positions, FaultSink fault) {
  const int64_t total = l.outer * count * l.inner, none = l.outer * l.size * l.inner;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += int64_t(gridDim.x) * blockDim.x) {
    int64_t row, k, o, j;
    divide(i, l.inner, row, k);
    divide(row, count, o, j);
    const int64_t at = index[i];
    const bool bad = at < 0 || at >= l.size;
    if (bad) fault.note(at, l.size);
    keys[i] = uint64_t(bad ? none : (o * l.size + at) * l.inner + k);
    positions[i] = i;
  }
}

// The thread at the beginning of a run adds all of it.
template <class T>
__global__ void __launch_bounds__(kBlock) add_elements(const T* source, const uint64_t* keys, const int64_t* positions,
                                                       int64_t total, uint64_t none, acc_t<T>* out) {
  using A = acc_t<T>;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += int64_t(gridDim.x) * blockDim.x) {
    const uint64_t key = keys[i];
    if (key >= none || (i > 0 && keys[i - 1] == key)) continue;
    A sum = 0;
    for (int64_t j = i; j < total && keys[j] == key; ++j) sum += A(source[positions[j]]);
    out[key] += sum;
  }
}

}  // namespace

void take_rows(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, const Fault& fault) {
  const Device device = x.device();
  // Rows move in the widest unit that divides them.
  const int64_t row_bytes = lanes.inner * int64_t(size_of(x.dtype()));
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    Lanes units{lanes.outer, lanes.size, row_bytes / int64_t(sizeof(T))};
    const int64_t total = units.outer * index.numel() * units.inner;
    take_rows_kernel<T><<<grid_for(total, kBlock, device), kBlock, 0, cuda_stream(device)>>>(
        static_cast<const T*>(x.raw()), index.data<int64_t>(), static_cast<T*>(out.raw()), units, index.numel(),
        fault.sink(device));
  };
  const uintptr_t common =
      reinterpret_cast<uintptr_t>(x.raw()) | reinterpret_cast<uintptr_t>(out.raw()) | uintptr_t(row_bytes);
  if (common % 16 == 0)
    run(Tag<uint4>{});
  else
    visit_width(x.dtype(), run);
  XY_CUDA(cudaGetLastError());
}

void add_rows(const Tensor& rows, const Tensor& index, const Tensor& out, Lanes lanes, bool accumulate) {
  const Device device = rows.device();
  const int64_t count = index.numel();
  if (!accumulate) XY_CUDA(cudaMemsetAsync(out.raw(), 0, out.nbytes(), cuda_stream(device)));
  if (count == 0 || out.numel() == 0) return;
  Tensor keys = empty({count}, i64, device), positions = empty({count}, i64, device);
  make_row_keys<<<grid_for(count, kBlock, device), kBlock, 0, cuda_stream(device)>>>(
      index.data<int64_t>(), count, lanes.size, static_cast<uint64_t*>(keys.raw()), positions.data<int64_t>());
  XY_CUDA(cudaGetLastError());
  Sorted sorted = sort(keys, positions, uint64_t(lanes.size));
  visit_float(rows.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, acc_t<T>>) {
      if (out.dtype() == rows.dtype()) return add_sorted<T, T>(rows, sorted, out, lanes);
    }
    add_sorted<T, acc_t<T>>(rows, sorted, out, lanes);
  });
}

void gather(const Tensor& x, const Tensor& index, const Tensor& out, Lanes lanes, int64_t count, const Fault& fault) {
  const Device device = x.device();
  visit_width(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    gather_kernel<T><<<grid_for(out.numel(), kBlock, device), kBlock, 0, cuda_stream(device)>>>(
        static_cast<const T*>(x.raw()), index.data<int64_t>(), static_cast<T*>(out.raw()), lanes, count,
        fault.sink(device));
  });
  XY_CUDA(cudaGetLastError());
}

void scatter_add(const Tensor& out, const Tensor& index, const Tensor& source, Lanes lanes, int64_t count,
                 const Fault& fault) {
  const Device device = out.device();
  cudaStream_t stream = cuda_stream(device);
  const int64_t total = source.numel();
  Tensor keys = empty({total}, i64, device), positions = empty({total}, i64, device);
  make_element_keys<<<grid_for(total, kBlock, device), kBlock, 0, stream>>>(
      index.data<int64_t>(), lanes, count, static_cast<uint64_t*>(keys.raw()), positions.data<int64_t>(),
      fault.sink(device));
  XY_CUDA(cudaGetLastError());
  Sorted sorted = sort(keys, positions, uint64_t(out.numel()));
  visit_float(source.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    add_elements<T><<<grid_for(total, kBlock, device), kBlock, 0, stream>>>(
        pointer<T>(source), static_cast<const uint64_t*>(sorted.keys.raw()), pointer<int64_t>(sorted.positions), total,
        uint64_t(out.numel()), pointer<acc_t<T>>(out));
  });
  XY_CUDA(cudaGetLastError());
}

}  // namespace xylem::cuda
