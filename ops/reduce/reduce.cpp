// SPDX-License-Identifier: Apache-2.0
// Sums, means, extrema and the variance.
#include "core/tensor/reduce.h"

#include "ops/ops.h"
#include "ops/reduce/reduce_lowering.h"

namespace xylem {

namespace {

std::vector<Sample> reduction_samples(const std::function<Tensor(const Tensor&, std::vector<int>, bool)>& f,
                                      bool with_empty) {
  auto sample = [&](const char* name, const Shape& shape, std::vector<int> dims, bool keepdim) {
    return Sample{name, {sample_normal(shape)}, [f, dims, keepdim](const Tensors& t) -> Tensors {
                    return {f(t[0], dims, keepdim)};
                  }};
  };
  std::vector<Sample> all = {sample("all", {3, 5}, {}, false),
                             sample("rows", {4, 70}, {1}, false),
                             sample("columns", {37, 6}, {0}, true),
                             sample("middle", {2, 5, 3}, {1}, false),
                             sample("outer and inner", {3, 4, 5}, {0, 2}, true),
                             sample("long", {20011}, {}, false),
                             sample("tall", {4099, 3}, {0}, false),
                             sample("one", {1}, {0}, false)};
  if (with_empty) all.push_back(sample("empty", {0, 3}, {0}, false));
  all.push_back(sample("no outputs", {3, 0}, {0}, false));
  return all;
}

double one_per_input(std::span<const Tensor> in, std::span<const Tensor>) { return double(in[0].numel()); }

const OpSpec& kSum =
    (new OpSpec("sum"))
        ->double_backward()
        .onnx(lower_reduction("ReduceSum"))
        .flops(one_per_input)
        .tolerance(1e-5, 4e-2)
        .samples([] { return reduction_samples([](auto& x, auto d, bool k) { return sum(x, d, k); }, true); });
const OpSpec& kMean =
    (new OpSpec("mean"))->double_backward().onnx(lower_reduction("ReduceMean")).flops(one_per_input).samples([] {
      return reduction_samples([](auto& x, auto d, bool k) { return mean(x, d, k); }, false);
    });
const OpSpec& kMax =
    (new OpSpec("amax"))->double_backward().onnx(lower_reduction("ReduceMax")).flops(one_per_input).samples([] {
      return reduction_samples([](auto& x, auto d, bool k) { return amax(x, d, k); }, false);
    });
const OpSpec& kMin =
    (new OpSpec("amin"))->double_backward().onnx(lower_reduction("ReduceMin")).flops(one_per_input).samples([] {
      return reduction_samples([](auto& x, auto d, bool k) { return amin(x, d, k); }, false);
    });
// Which dimensions `dims` names (all if empty), and the result's shape with those dimensions kept as 1.
std::vector<bool> chosen(const Tensor& x, const std::vector<int>& dims, Shape& kept) {
  std::vector<bool> reduce(x.rank(), dims.empty());
  for (int d : dims) {
    int at = x.dim_index(d);
    XY_CHECK(!reduce[at], "dimension ", d, " is named twice");
    reduce[at] = true;
  }
  kept = x.shape();
  for (int i = 0; i < x.rank(); ++i)
    if (reduce[i]) kept[i] = 1;
  return reduce;
}
Shape without(const Shape& kept, const std::vector<bool>& reduce) {
  Shape s;
  for (int i = 0; i < kept.rank(); ++i)
    if (!reduce[i]) s.push_back(kept[i]);
  return s;
}

Tensor sum_like(const OpSpec& spec, const Tensor& x, const std::vector<int>& dims, bool keepdim, bool average) {
  OpScope scope(spec);
  if (!is_float(x.dtype())) {
    XY_CHECK(!average, "needs a floating point tensor but got ", x.dtype(), "; convert it with .to(xylem::f32)");
    if (x.dtype() != i64) return sum(x.to(i64), dims, keepdim);
  }
  Shape kept;
  auto reduce = chosen(x, dims, kept);
  int64_t count = 1;
  for (int i = 0; i < x.rank(); ++i)
    if (reduce[i]) count *= x.shape()[i];
  double scale = average ? 1.0 / double(count) : 1.0;
  Tensor y = reduced(x, reduce, keepdim ? kept : without(kept, reduce), ReduceKind::sum, scale);
  return record(spec, y, {x}, {{"dims", std::vector<int64_t>(dims.begin(), dims.end())}, {"keepdim", keepdim}},
                [=, shape = x.shape()](const Tensor& dy, const Wanted&) -> Tensors {
                  Tensor g = average ? mul(dy, scale) : dy;
                  return {g.reshape(kept).expand(shape)};
                });
}

Tensor extremum(const OpSpec& spec, const Tensor& x, const std::vector<int>& dims, bool keepdim, ReduceKind kind) {
  OpScope scope(spec);
  Shape kept;
  auto reduce = chosen(x, dims, kept);
  for (int i = 0; i < x.rank(); ++i)
    XY_CHECK(!reduce[i] || x.shape()[i] > 0, "dimension ", i, " of shape ", x.shape(), " has no elements to compare");
  Tensor y = reduced(x, reduce, keepdim ? kept : without(kept, reduce), kind, 1);
  return record(spec, y, {x}, {{"dims", std::vector<int64_t>(dims.begin(), dims.end())}, {"keepdim", keepdim}},
                [x = Saved(x), y = Saved::output(y), kept, reduce](const Tensor& dy, const Wanted&) -> Tensors {
                  std::vector<int> over;
                  for (size_t i = 0; i < reduce.size(); ++i)
                    if (reduce[i]) over.push_back(int(i));
                  Tensor hit = no_grad([&] { return eq(x.get(), y.get().reshape(kept)).to(dy.dtype()); });
                  if (over.empty()) return {dy};
                  Tensor share = no_grad([&] { return hit / sum(hit, over, true); });
                  return {share * dy.reshape(kept)};
                });
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return sum_like(kSum, x, dims, keepdim, false);
}
Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return sum_like(kMean, x, dims, keepdim, true);
}
Tensor amax(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return extremum(kMax, x, dims, keepdim, ReduceKind::max);
}
Tensor amin(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return extremum(kMin, x, dims, keepdim, ReduceKind::min);
}

// Two passes: the mean first, so that a large mean does not swallow a small spread.
Tensor var(const Tensor& x, const std::vector<int>& dims, bool keepdim, int correction) {
  if (is_half(x.dtype())) return var(x.to(f32), dims, keepdim, correction).to(x.dtype());
  Tensor centred = x - mean(x, dims, true);
  Tensor squares = sum(centred * centred, dims, keepdim);
  double count = double(x.numel()) / double(std::max<int64_t>(squares.numel(), 1));
  return squares / (count - correction);
}

}  // namespace xylem
