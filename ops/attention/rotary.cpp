// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (Su et al., 2021).
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "core/autograd/unobserved.h"
#include "core/device/graph.h"
#include "core/tensor/dispatch.h"
#include "core/util/parallel.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_lowering.h"
#include "ops/backend/grad_target.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<Sample> samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& shape, double base, int64_t offset) {
    list.push_back(
        {name, {sample_normal(shape)}, [=](const Tensors& t) -> Tensors { return {rotary(t[0], base, offset)}; }});
  };
  add("small", {2, 5, 3, 8}, 10000, 0);
  add("pair", {1, 7, 2, 2}, 100, 0);
  add("odd half", {2, 3, 1, 6}, 10000, 4);
  add("late positions", {1, 4, 2, 16}, 500000, 1000);
  add("no positions", {2, 0, 3, 4}, 10000, 0);
  return list;
}

const OpSpec& kRotary = (new OpSpec("rotary"))->onnx(lower_rotary).samples(samples).double_backward();

Tensor rotate(const Tensor& x, double base, int64_t offset, bool back);

Tensor recorded(const Tensor& x, double base, int64_t offset, bool back) {
  return record(kRotary, rotate(x, base, offset, back), {x}, {{"base", base}, {"offset", offset}, {"back", back}},
                [base, offset, back](const Tensor& dy, const Wanted&) -> Tensors {
                  return {recorded(dy, base, offset, !back)};  // the inverse of a rotation is its transpose
                });
}

Tensor make_table(int64_t positions, int64_t half, DType type, Device device, double base) {
  Tensor table = empty({2, positions, half}, type, device);
  XY_ON_DEVICE(table, rotary_table, table, base);
  return table;
}

// Cosines and sines [2, positions, half] of positions from 0 on. A table is made once for each stream and lives as long
// as the process, since CUDA graphs may read it; one that is too short is joined by one at least twice as long.
Tensor table_for(int64_t positions, int64_t half, DType type, Device device, double base) {
  using Key = std::tuple<int, CUstream_st*, DType, int64_t, double>;
  static std::mutex mutex;
  static auto& tables = *new std::map<Key, Tensors>;
  std::lock_guard lock(mutex);
  Tensors& kept = tables[{device.is_cuda() ? device.index : -1, current_stream(device).handle(), type, half, base}];
  if (kept.empty() || kept.back().size(1) < positions) {
    // What a capture allocates holds nothing before the graph is launched, so that only the graph may read it.
    if (capturing(device)) return make_table(positions, half, type, device, base);
    kept.push_back(
        make_table(std::max(positions, kept.empty() ? int64_t(0) : 2 * kept.back().size(1)), half, type, device, base));
  }
  return kept.back();
}

Tensor rotate(const Tensor& x, double base, int64_t offset, bool back) {
  Tensor out = empty(x.shape(), x.dtype(), x.device());
  if (x.numel() == 0) return out;
  Unobserved table_is_no_operation;
  Tensor all = table_for(offset + x.size(1), x.size(3) / 2, compute_type(x.dtype()), x.device(), base);
  Tensor table = all.narrow(1, offset, x.size(1));
  XY_ON_DEVICE(x, rotary, {x.stride(3) == 1 ? x.detach() : packed(x), table, out, back ? -1.0 : 1.0});
  return out;
}

}  // namespace

Tensor rotary(const Tensor& x, double base, int64_t offset) {
  OpScope scope(kRotary);
  XY_CHECK(is_float(x.dtype()), "x must be floating point, not ", x.dtype());
  XY_CHECK(x.rank() == 4 && x.size(3) % 2 == 0, "x must be [B, S, H, D] with an even D, but its shape is ", x.shape());
  XY_CHECK(base > 0 && offset >= 0, "base ", base, " must be positive and offset ", offset, " not negative");
  return recorded(x, base, offset, false);
}

namespace cpu {

// Angles as Hugging Face's Llama forms them: the frequency rounded to f32, then multiplied by the position.
void rotary_table(const Tensor& table, double base) {
  const int64_t positions = table.size(1), half = table.size(2);
  visit_float(table.dtype(), [&](auto tag) {
    using A = acc_t<typename decltype(tag)::type>;
    A *cosine = static_cast<A*>(table.raw()), *sine = cosine + positions * half;
    for (int64_t i = 0; i < half; ++i) {
      const A frequency = A(1 / std::pow(base, double(2 * i) / double(2 * half)));
      for (int64_t s = 0; s < positions; ++s) {
        const A angle = A(s) * frequency;
        cosine[s * half + i] = std::cos(angle);
        sine[s * half + i] = std::sin(angle);
      }
    }
  });
}

void rotary(const RotaryCall& r) {
  const int64_t positions = r.x.size(1), heads = r.x.size(2), half = r.x.size(3) / 2;
  visit_float(r.x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const A *cosine = r.table.data<const A>(), *sine = cosine + r.table.stride(0), sign = A(r.sign);
    parallel_for(r.x.size(0) * positions, 1 + 4096 / (heads * half), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t b = row / positions, s = row % positions;
        const A *c = cosine + s * half, *n = sine + s * half;
        for (int64_t h = 0; h < heads; ++h) {
          const T* x = r.x.data<const T>() + b * r.x.stride(0) + s * r.x.stride(1) + h * r.x.stride(2);
          T* y = r.out.data<T>() + (row * heads + h) * 2 * half;
          for (int64_t i = 0; i < half; ++i) {
            const A u = A(x[i]), w = A(x[i + half]), t = sign * n[i];
            y[i] = T(u * c[i] - w * t);
            y[i + half] = T(w * c[i] + u * t);
          }
        }
      }
    });
  });
}

}  // namespace cpu
}  // namespace xylem
