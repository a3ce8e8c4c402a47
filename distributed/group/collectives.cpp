// SPDX-License-Identifier: Apache-2.0
#include "distributed/group/collectives.h"

#include "core/autograd/autograd.h"

namespace xylem {
namespace {

using Samples = std::vector<Sample>;

// In a group of one; tests/dist/collectives_test.cpp has the others.
template <class F>
std::function<Samples()> alone(F f) {
  return [f] {
    auto run = [f](const Tensors& t) -> Tensors { return {f(t[0], Group())}; };
    return Samples{{"matrix", {sample_normal({3, 4})}, run},
                   {"one", {sample_normal({1, 1})}, run},
                   {"empty", {sample_normal({0, 2})}, run}};
  };
}
template <class F>
OpSpec& spec(const char* name, F f) {
  return (new OpSpec(name))->samples(alone(f)).not_exportable("collective");
}

const OpSpec& kAllReduce =
    spec("all_reduce", [](const Tensor& x, const Group& g) { return all_reduce(x, g); }).double_backward();
const OpSpec& kAllGather =
    spec("all_gather", [](const Tensor& x, const Group& g) { return all_gather(x, g, 1); }).double_backward();
const OpSpec& kReduceScatter =
    spec("reduce_scatter", [](const Tensor& x, const Group& g) { return reduce_scatter(x, g, 1); }).double_backward();
const OpSpec& kAllToAll =
    spec("all_to_all", [](const Tensor& x, const Group& g) { return all_to_all(x, g, 1); }).double_backward();
const OpSpec& kBroadcast = spec("broadcast", [](const Tensor& x, const Group& g) { return broadcast(x, g); });
const OpSpec& kEnter =
    spec("enter_parallel", [](const Tensor& x, const Group& g) { return enter_parallel(x, g); }).double_backward();
const OpSpec& kLeave =
    spec("leave_parallel", [](const Tensor& x, const Group& g) { return leave_parallel(x, g); }).double_backward();

Tensor dense_copy(const Tensor& x) {
  Tensor y = empty(x.shape(), x.dtype(), x.device());
  no_grad([&] { y.copy_(x.detach()); });
  return y;
}

// [.., n * m, ..] -> [n, .., m, ..], dense
Tensor apart(const Tensor& x, int dim, int n) {
  XY_CHECK(x.size(dim) % n == 0, "dimension ", dim, " of shape ", x.shape(), " does not divide among ", n, " ranks");
  return no_grad([&] {
    Shape shape = x.shape();
    shape[dim] /= n;
    shape.insert(dim, n);
    std::vector<int> order{dim};
    for (int i = 0; i < shape.rank(); ++i)
      if (i != dim) order.push_back(i);
    return x.detach().contiguous().view(shape).permute(order).contiguous();
  });
}

// [n, .., m, ..] -> [.., n * m, ..]
Tensor together(const Tensor& parts, int dim) {
  return no_grad([&] {
    std::vector<int> order;
    for (int i = 1; i < parts.rank(); ++i) {
      if (i - 1 == dim) order.push_back(0);
      order.push_back(i);
    }
    Shape shape;
    for (int i = 1; i < parts.rank(); ++i) shape.push_back(parts.size(i) * (i - 1 == dim ? parts.size(0) : 1));
    return parts.permute(order).reshape(shape);
  });
}

Tensor summed(const Tensor& x, const Group& group) {
  Tensor y = dense_copy(x);
  group.all_reduce(y).wait();
  return y;
}

}  // namespace

Tensor all_reduce(const Tensor& x, const Group& group) {
  OpScope scope(kAllReduce);
  return record(kAllReduce, summed(x, group), {x}, {},
                [group](const Tensor& dy, const Wanted&) -> Tensors { return {all_reduce(dy, group)}; });
}

Tensor all_gather(const Tensor& x, const Group& group, int dim) {
  OpScope scope(kAllGather);
  dim = x.dim_index(dim);
  Shape shape = x.shape();
  shape.insert(0, group.size());
  Tensor parts = empty(shape, x.dtype(), x.device());
  group.all_gather(parts, x.detach().contiguous()).wait();
  return record(kAllGather, together(parts, dim), {x}, {{"dim", int64_t(dim)}},
                [group, dim](const Tensor& dy, const Wanted&) -> Tensors { return {reduce_scatter(dy, group, dim)}; });
}

Tensor reduce_scatter(const Tensor& x, const Group& group, int dim) {
  OpScope scope(kReduceScatter);
  dim = x.dim_index(dim);
  Tensor parts = apart(x, dim, group.size());
  Shape shape = parts.shape();
  shape.erase(0);
  Tensor y = empty(shape, x.dtype(), x.device());
  group.reduce_scatter(y, parts).wait();
  return record(kReduceScatter, y, {x}, {{"dim", int64_t(dim)}},
                [group, dim](const Tensor& dy, const Wanted&) -> Tensors { return {all_gather(dy, group, dim)}; });
}

Tensor all_to_all(const Tensor& x, const Group& group, int dim) {
  OpScope scope(kAllToAll);
  dim = x.dim_index(dim);
  Tensor parts = apart(x, dim, group.size()), received = empty_like(parts);
  group.all_to_all(received, parts).wait();
  return record(kAllToAll, together(received, dim), {x}, {{"dim", int64_t(dim)}},
                [group, dim](const Tensor& dy, const Wanted&) -> Tensors { return {all_to_all(dy, group, dim)}; });
}

Tensor broadcast(const Tensor& x, const Group& group, int root) {
  OpScope scope(kBroadcast);
  Tensor y = dense_copy(x);
  group.broadcast(y, root).wait();
  return record(kBroadcast, y, {x}, {{"root", int64_t(root)}},
                [group, root](const Tensor& dy, const Wanted&) -> Tensors {
                  Tensor dx = dense_copy(dy);
                  group.reduce(dx, root).wait();
                  if (group.rank() != root) dx.zero_();
                  return {dx};
                });
}

Tensor enter_parallel(const Tensor& x, const Group& group) {
  OpScope scope(kEnter);
  return record(kEnter, x, {x}, {},
                [group](const Tensor& dy, const Wanted&) -> Tensors { return {leave_parallel(dy, group)}; });
}

Tensor leave_parallel(const Tensor& x, const Group& group) {
  OpScope scope(kLeave);
  return record(kLeave, summed(x, group), {x}, {},
                [group](const Tensor& dy, const Wanted&) -> Tensors { return {enter_parallel(dy, group)}; });
}

}  // namespace xylem
