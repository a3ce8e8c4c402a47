// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dispatch.h"
#include "ops/ops.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/reduce_lowering.h"

namespace xylem {
namespace {

const OpSpec& kArgmax = (new OpSpec("argmax"))->not_differentiable().onnx(lower_argmax).samples([] {
  return std::vector<Sample>{
      {"rows", {sample_normal({5, 300})}, [](const Tensors& t) -> Tensors { return {argmax(t[0])}; }},
      {"columns", {sample_normal({7, 3})}, [](const Tensors& t) -> Tensors { return {argmax(t[0], 0, true)}; }},
      {"ties", {zeros({3, 40}, f64)}, [](const Tensors& t) -> Tensors { return {argmax(t[0])}; }}};
});
const OpSpec& kTopk = (new OpSpec("topk"))->double_backward().onnx(lower_topk).samples([] {
  // Distinct in every type: 16-bit rounding must not make ties.
  Tensor x = (sample_index({4, 1}, 100).to(f64) + arange(64, f64) * 0.5).contiguous();
  return std::vector<Sample>{{"rows",
                              {x},
                              [](const Tensors& t) -> Tensors {
                                auto [v, i] = topk(t[0], 5);
                                return {v, i};
                              }},
                             {"all of a column", {x.slice(1, 0, 9).clone()}, [](const Tensors& t) -> Tensors {
                                auto [v, i] = topk(t[0], 4, 0);
                                return {v, i};
                              }}};
});

}  // namespace

Tensor argmax(const Tensor& x, int dim, bool keepdim) {
  OpScope scope(kArgmax);
  dim = x.dim_index(dim);
  XY_CHECK(x.size(dim) > 0, "dimension ", dim, " of shape ", x.shape(), " has no elements to compare");
  Tensor rows = no_grad([&] { return x.detach().transpose(dim, -1).contiguous(); });
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = 1;
  Tensor y = empty(shape, i64, x.device());
  if (y.numel() > 0) XY_ON_DEVICE(x, argmax, rows, y);
  y = y.transpose(dim, -1);
  return record(kArgmax, keepdim ? y : y.squeeze(dim), {x}, {{"dim", int64_t(dim)}, {"keepdim", keepdim}});
}

std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int dim) {
  OpScope scope(kTopk);
  dim = x.dim_index(dim);
  XY_CHECK(k >= 0 && k <= x.size(dim), "k = ", k, " but dimension ", dim, " of shape ", x.shape(), " has ", x.size(dim),
           " elements");
  Tensor rows = no_grad([&] { return x.detach().transpose(dim, -1).contiguous(); });
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = k;
  Tensor values = empty(shape, x.dtype(), x.device()), indices = empty(shape, i64, x.device());
  if (values.numel() > 0) XY_ON_DEVICE(x, topk, rows, values, indices);
  values = values.transpose(dim, -1), indices = indices.transpose(dim, -1);
  Tensors out = record(kTopk, Tensors{values, indices}, {x}, {{"k", k}, {"dim", int64_t(dim)}},
                       [=, shape = x.shape()](std::span<const Tensor> dy, const Wanted&) -> Tensors {
                         Tensor none = zeros(shape, dy[0].dtype(), dy[0].device());
                         return {scatter_add(none, dim, indices, dy[0])};
                       });
  return {out[0], out[1]};
}

}  // namespace xylem
