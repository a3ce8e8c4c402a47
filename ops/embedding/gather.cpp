// SPDX-License-Identifier: Apache-2.0
// Single elements picked by index: gather and scatter_add, each the other's gradient.
#include "core/tensor/dispatch.h"
#include "ops/backend/grad_target.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/embedding_lowering.h"
#include "ops/ops.h"

namespace xylem {
namespace {

struct Case {
  const char* name;
  Shape x;
  int dim;
  Shape index;
};
const Case kCases[] = {{"rows", {4, 5}, 0, {7, 5}},
                       {"columns", {4, 5}, 1, {4, 3}},
                       {"fewer lanes", {4, 5, 3}, 1, {2, 6, 2}},
                       {"middle", {3, 6, 4}, -2, {3, 2, 4}},
                       {"vector", {8}, 0, {30}},
                       {"none", {3, 4}, 1, {3, 0}},
                       {"one", {1}, 0, {1}},
                       {"crowded", {2, 3}, 1, {2, 500}}};

std::vector<Sample> gather_samples() {
  std::vector<Sample> list;
  for (const Case& c : kCases)
    list.push_back({c.name,
                    {sample_uniform(c.x), sample_index(c.index, c.x[c.dim < 0 ? c.dim + c.x.rank() : c.dim])},
                    [dim = c.dim](const Tensors& t) -> Tensors { return {gather(t[0], dim, t[1])}; }});
  return list;
}
std::vector<Sample> scatter_samples() {
  std::vector<Sample> list;
  for (const Case& c : kCases)
    list.push_back({c.name,
                    {sample_uniform(c.x), sample_index(c.index, c.x[c.dim < 0 ? c.dim + c.x.rank() : c.dim]),
                     sample_uniform(c.index, -1, 1, 2)},
                    [dim = c.dim](const Tensors& t) -> Tensors { return {scatter_add(t[0], dim, t[1], t[2])}; }});
  return list;
}

const OpSpec& kGather = (new OpSpec("gather"))->samples(gather_samples).double_backward().onnx(lower_gather);
const OpSpec& kScatterAdd =
    (new OpSpec("scatter_add"))->samples(scatter_samples).double_backward().onnx(lower_scatter_add);

std::string outside(int64_t index, int64_t size) {
  return detail::concat("index ", index, " is outside a dimension of size ", size);
}
const Fault kGatherOutside("gather", outside), kScatterOutside("scatter_add", outside);

void check(const Tensor& x, int dim, const Tensor& index) {
  XY_CHECK(index.dtype() == i64 || index.dtype() == i32, "the index must be i64 or i32, not ", index.dtype());
  XY_CHECK(index.device() == x.device(), "the index is on ", index.device(), " and x on ", x.device());
  XY_CHECK(index.rank() == x.rank(), "index of shape ", index.shape(), " must have as many dimensions as x of shape ",
           x.shape());
  for (int i = 0; i < x.rank(); ++i)
    XY_CHECK(i == dim || index.size(i) <= x.size(i), "index of shape ", index.shape(), " is larger than x of shape ",
             x.shape(), " outside dimension ", dim);
}

// The part of x that the index can reach.
Tensor reach(const Tensor& x, int dim, const Shape& index) {
  Tensor part = x.detach();
  for (int i = 0; i < x.rank(); ++i)
    if (i != dim && index[i] != x.size(i)) part = part.narrow(i, 0, index[i]);
  return part;
}

Lanes lanes_of(const Shape& shape, int dim) {
  Lanes l{1, shape[dim], 1};
  for (int i = 0; i < dim; ++i) l.outer *= shape[i];
  for (int i = dim + 1; i < shape.rank(); ++i) l.inner *= shape[i];
  return l;
}

// x + the scattered source, without recording; an undefined x is a tensor of zeros.
Tensor scattered(const Tensor& x, const Shape& shape, int dim, const Tensor& index, const Tensor& source) {
  const DType type = compute_type(source.dtype());
  Tensor sum = x.defined() ? empty(shape, type, source.device()) : zeros(shape, type, source.device());
  if (x.defined()) sum.copy_(x.detach());
  if (index.numel() == 0) return sum.to(source.dtype());
  Tensor part = reach(sum, dim, index.shape()), target = part.contiguous();
  XY_ON_DEVICE(source, scatter_add, target, packed(index, i64), packed(source), lanes_of(target.shape(), dim),
               index.size(dim), kScatterOutside);
  if (target.raw() != part.raw()) part.copy_(target);
  return sum.to(source.dtype());
}

}  // namespace

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  OpScope scope(kGather);
  dim = x.dim_index(dim);
  check(x, dim, index);
  Tensor y = empty(index.shape(), x.dtype(), x.device());
  if (y.numel() > 0) {
    Tensor part = reach(x, dim, index.shape()).contiguous();
    XY_ON_DEVICE(x, gather, part, packed(index, i64), y, lanes_of(part.shape(), dim), index.size(dim), kGatherOutside);
  }
  return record(kGather, y, {x, index}, {{"dim", int64_t(dim)}},
                [index = Saved(index), dim, shape = x.shape()](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor at = index.get();
                  if (want.create_graph()) return {scatter_add(zeros(shape, dy.dtype(), dy.device()), dim, at, dy), {}};
                  return {scattered({}, shape, dim, at, dy), {}};
                });
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  OpScope scope(kScatterAdd);
  dim = x.dim_index(dim);
  check(x, dim, index);
  XY_CHECK(source.shape() == index.shape(), "source of shape ", source.shape(), " must have the index's shape ",
           index.shape());
  XY_CHECK(source.dtype() == x.dtype() && is_float(x.dtype()), "x (", x.dtype(), ") and source (", source.dtype(),
           ") must hold one floating point type");
  XY_CHECK(source.device() == x.device(), "source is on ", source.device(), " and x on ", x.device());
  Tensor y = no_grad([&] { return scattered(x, x.shape(), dim, index, source); });
  return record(kScatterAdd, y, {x, index, source}, {{"dim", int64_t(dim)}},
                [index = Saved(index), dim](const Tensor& dy, const Wanted& want) -> Tensors {
                  return {want[0] ? dy : Tensor(), {}, want[2] ? gather(dy, dim, index.get()) : Tensor()};
                });
}

}  // namespace xylem
