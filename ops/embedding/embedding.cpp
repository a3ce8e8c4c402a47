// SPDX-License-Identifier: Apache-2.0
// Rows picked by index: embedding and index_select.
#include "ops/embedding/embedding.h"

#include "core/tensor/dispatch.h"
#include "ops/backend/grad_target.h"
#include "ops/embedding/embedding_lowering.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<Sample> embedding_samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& ids, int64_t rows, int64_t width) {
    list.push_back({name, {sample_index(ids, rows), sample_uniform({rows, width})}, [](const Tensors& t) -> Tensors {
                      return {embedding(t[0], t[1])};
                    }});
  };
  add("words", {2, 7}, 11, 8);
  add("odd width", {13}, 5, 3);
  add("one row", {3, 2}, 1, 16);
  add("many of few", {700}, 3, 33);
  add("no indices", {0}, 4, 8);
  add("wide", {5}, 9, 1030);
  return list;
}

std::vector<Sample> select_samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& x, int dim, int64_t count) {
    list.push_back({name,
                    {sample_uniform(x), sample_index({count}, x[dim < 0 ? dim + x.rank() : dim])},
                    [dim](const Tensors& t) -> Tensors { return {index_select(t[0], dim, t[1])}; }});
  };
  add("first", {5, 4}, 0, 7);
  add("middle", {3, 5, 4}, 1, 9);
  add("last", {4, 6}, -1, 3);
  add("none", {4, 6}, 1, 0);
  add("vector", {9}, 0, 20);
  return list;
}

const OpSpec& kEmbedding =
    (new OpSpec("embedding"))->samples(embedding_samples).double_backward().onnx(lower_embedding);
const OpSpec& kIndexSelect =
    (new OpSpec("index_select"))->samples(select_samples).double_backward().onnx(lower_index_select);

const Fault kOutsideTable("embedding", [](int64_t index, int64_t rows) {
  return detail::concat("index ", index, " is outside a table of ", rows, " rows");
});
const Fault kOutsideDimension("index_select", [](int64_t index, int64_t size) {
  return detail::concat("index ", index, " is outside a dimension of size ", size);
});

Lanes lanes_of(const Shape& shape, int dim) {
  Lanes l{1, shape[dim], 1};
  for (int i = 0; i < dim; ++i) l.outer *= shape[i];
  for (int i = dim + 1; i < shape.rank(); ++i) l.inner *= shape[i];
  return l;
}

// Gradient of picking rows along dim: [.., M, ..] back to `shape`, as differentiable operations.
Tensor spread(const Tensor& dy, int dim, const Tensor& index, const Shape& shape) {
  Shape column = Shape::filled(dy.rank(), 1);
  column[dim] = index.numel();
  return scatter_add(zeros(shape, dy.dtype(), dy.device()), dim, index.reshape(column).expand(dy.shape()), dy);
}

void check_index(const Tensor& index, const Tensor& x) {
  XY_CHECK(index.dtype() == i64 || index.dtype() == i32, "indices must be i64 or i32, not ", index.dtype());
  XY_CHECK(index.device() == x.device(), "indices are on ", index.device(), " and the data on ", x.device());
}

}  // namespace

Tensor embedding(const Tensor& indices, const Tensor& table) {
  OpScope scope(kEmbedding);
  XY_CHECK(table.rank() == 2 && is_float(table.dtype()), "the table must be a floating point [V, C], but it is ",
           table.dtype(), " ", table.shape());
  check_index(indices, table);
  Shape shape = indices.shape();
  shape.push_back(table.size(1));
  Tensor ids = packed(indices, i64), y = empty(shape, table.dtype(), table.device());
  const Lanes lanes{1, table.size(0), table.size(1)};
  if (y.numel() > 0) XY_ON_DEVICE(table, take_rows, packed(table), ids, y, lanes, kOutsideTable);
  return record(kEmbedding, y, {indices, table}, {},
                [ids = Saved(ids), lanes, device = table.device()](const Tensor& dy, const Wanted& want) -> Tensors {
                  if (!want[1]) return {{}, {}};
                  Tensor index = ids.get();
                  const Shape shape{lanes.size, lanes.inner};
                  if (want.create_graph())
                    return {{}, spread(dy.reshape({index.numel(), lanes.inner}), 0, index, shape)};
                  // The kernel sums in f32 whatever it writes, so a 16-bit table may take its gradient directly too.
                  const DType type = compute_type(dy.dtype());
                  auto sink = want.sink(1);
                  GradTarget target(want, 1, shape, sink && sink->grad.dtype() == type ? type : dy.dtype(), device);
                  XY_ON_DEVICE(dy, add_rows, packed(dy), index, target.out, lanes, target.accumulate);
                  return {{}, target.finish(want, 1, dy.dtype())};
                });
}

Tensor index_select(const Tensor& x, int dim, const Tensor& indices) {
  OpScope scope(kIndexSelect);
  XY_CHECK(indices.rank() == 1, "indices must be 1-D, but their shape is ", indices.shape());
  check_index(indices, x);
  dim = x.dim_index(dim);
  Shape shape = x.shape();
  shape[dim] = indices.numel();
  Tensor ids = packed(indices, i64), y = empty(shape, x.dtype(), x.device());
  const Lanes lanes = lanes_of(x.shape(), dim);
  if (y.numel() > 0) XY_ON_DEVICE(x, take_rows, packed(x), ids, y, lanes, kOutsideDimension);
  return record(kIndexSelect, y, {x, indices}, {{"dim", int64_t(dim)}},
                [ids = Saved(ids), lanes, dim, shape = x.shape()](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor index = ids.get();
                  if (want.create_graph()) return {spread(dy, dim, index, shape), {}};
                  Tensor dx = empty(shape, dy.dtype(), dy.device());
                  XY_ON_DEVICE(dy, add_rows, packed(dy), index, dx, lanes, false);
                  return {dx, {}};
                });
}

}  // namespace xylem
