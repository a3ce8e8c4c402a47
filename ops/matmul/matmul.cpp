// SPDX-License-Identifier: Apache-2.0
// matmul and linear: checks, shapes and derivatives.
#include "ops/matmul/matmul.h"

#include "ops/matmul/matmul_lowering.h"
#include "ops/ops.h"

namespace xylem {
namespace {

double product_flops(std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  return 2.0 * double(outputs[0].numel()) * double(inputs[0].size(-1));
}

Sample matmul_sample(const char* name, Tensor a, Tensor b) {
  return {name, {a, b}, [](const Tensors& t) { return Tensors{matmul(t[0], t[1])}; }};
}
Sample linear_sample(const char* name, const Shape& x, int64_t out, bool bias) {
  Tensors inputs = {sample_normal(x), sample_normal({out, x.back()}, 1, 2)};
  if (bias) inputs.push_back(sample_normal({out}, 1, 3));
  return {name, inputs, [](const Tensors& t) { return Tensors{linear(t[0], t[1], t.size() > 2 ? t[2] : Tensor())}; }};
}

const OpSpec& kMatmul =
    (new OpSpec("matmul"))
        ->onnx(lower_matmul)
        .samples([]() -> std::vector<Sample> {
          Tensor heads = sample_normal({2, 5, 3, 4}), keys = sample_normal({2, 6, 3, 4}, 1, 2);
          return {matmul_sample("plain", sample_normal({4, 8}), sample_normal({8, 6}, 1, 2)),
                  matmul_sample("odd", sample_normal({7, 13}), sample_normal({13, 5}, 1, 2)),
                  matmul_sample("one", sample_normal({1, 1}), sample_normal({1, 1}, 1, 2)),
                  matmul_sample("batch", sample_normal({3, 4, 5}), sample_normal({3, 5, 2}, 1, 2)),
                  matmul_sample("shared right", sample_normal({3, 4, 5}), sample_normal({5, 2}, 1, 2)),
                  matmul_sample("shared left", sample_normal({4, 5}), sample_normal({3, 5, 2}, 1, 2)),
                  matmul_sample("broadcast", sample_normal({2, 1, 3, 4}), sample_normal({3, 4, 2}, 1, 2)),
                  matmul_sample("vectors", sample_normal({9}), sample_normal({9}, 1, 2)),
                  matmul_sample("vector left", sample_normal({5}), sample_normal({2, 5, 3}, 1, 2)),
                  matmul_sample("vector right", sample_normal({2, 3, 5}), sample_normal({5}, 1, 2)),
                  matmul_sample("no rows", sample_normal({0, 4}), sample_normal({4, 3}, 1, 2)),
                  matmul_sample("no depth", sample_normal({2, 0}), sample_normal({0, 3}, 1, 2)),
                  {"attention scores", {heads, keys}, [](const Tensors& t) {
                     return Tensors{matmul(t[0].transpose(1, 2), t[1].transpose(1, 2).transpose(2, 3))};
                   }}};
        })
        .flops(product_flops)
        .tolerance(1e-5, 4e-2)
        .double_backward();

const OpSpec& kLinear =
    (new OpSpec("linear"))
        ->role(OpRole::linear)
        .onnx(lower_linear)
        .samples([]() -> std::vector<Sample> {
          return {linear_sample("plain", {6, 8}, 16, true), linear_sample("no bias", {2, 3, 8}, 8, false),
                  linear_sample("odd", {3, 5, 7}, 9, true), linear_sample("vector", {12}, 5, true),
                  linear_sample("one", {1, 1}, 1, true),    linear_sample("empty", {0, 4}, 3, true)};
        })
        .flops(product_flops)
        .tolerance(1e-5, 4e-2)
        .double_backward();

// a [.., M, K], b [.., K, N], at least 2-D, batch dims broadcast.
Tensor product(const Tensor& a, const Tensor& b) {
  NoGrad no_history;
  Shape batch_a = a.shape(), batch_b = b.shape();
  for (Shape* s : {&batch_a, &batch_b}) s->erase(s->rank() - 1), s->erase(s->rank() - 1);
  Shape batch = broadcast(batch_a, batch_b), shape_a = batch, shape_b = batch, shape_d = batch;
  shape_a.push_back(a.size(-2)), shape_a.push_back(a.size(-1));
  shape_b.push_back(b.size(-2)), shape_b.push_back(b.size(-1));
  shape_d.push_back(a.size(-2)), shape_d.push_back(b.size(-1));
  Tensor d = empty(shape_d, a.dtype(), a.device());
  gemm(a.expand(shape_a), b.expand(shape_b), d);
  return d;
}

// The gradient of b in a @ b. A b without batch dims sees all rows of a at once.
Tensor right_gradient(const Tensor& a, const Tensor& b, const Tensor& dy) {
  if (b.rank() == 2 && a.rank() > 2)
    return matmul(a.reshape({-1, a.size(-1)}).transpose(0, 1), dy.reshape({-1, dy.size(-1)}));
  return sum_to(matmul(a.transpose(-1, -2), dy), b.shape());
}

void check_operands(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) {
  XY_CHECK(a.defined() && b.defined(), a_name, " and ", b_name, " must be defined");
  XY_CHECK(is_float(a.dtype()), a_name, " must be a floating point tensor, not ", a.dtype());
  XY_CHECK(a.dtype() == b.dtype(), a_name, " is ", a.dtype(), " but ", b_name, " is ", b.dtype());
  XY_CHECK(a.device() == b.device(), a_name, " is on ", a.device(), " but ", b_name, " is on ", b.device());
}

// Writes or adds a gradient where backward wants it: into the leaf's own buffer, or into a new tensor.
template <class F>
Tensor deliver(const Wanted& want, int input, const Shape& shape, const Tensor& like, F&& compute) {
  if (!want[input]) return {};
  if (auto sink = want.sink(input)) {
    compute(sink->grad.view(shape), sink->accumulate);
    want.wrote(input);
    return {};
  }
  Tensor grad = empty(shape, like.dtype(), like.device());
  compute(grad, false);
  return grad;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  OpScope scope(kMatmul);
  check_operands(a, "a", b, "b");
  XY_CHECK(a.rank() >= 1 && b.rank() >= 1, "both operands need a dimension: a ", a.shape(), ", b ", b.shape());
  XY_CHECK(a.size(-1) == b.size(b.rank() == 1 ? 0 : -2), "inner sizes differ: a ", a.shape(), ", b ", b.shape());
  // Vectors: a row on the left, a column on the right, and the added dim goes away again.
  if (a.rank() == 1 || b.rank() == 1) {
    Tensor y = matmul(a.rank() == 1 ? a.unsqueeze(0) : a, b.rank() == 1 ? b.unsqueeze(1) : b);
    if (b.rank() == 1) y = y.squeeze(-1);
    return a.rank() == 1 ? y.squeeze(b.rank() == 1 ? -1 : -2) : y;
  }
  Tensor y = product(a, b);
  return record(kMatmul, y, {a, b}, {}, [a = Saved(a), b = Saved(b)](const Tensor& dy, const Wanted& want) -> Tensors {
    Tensor left = a.get(), right = b.get();
    return {want[0] ? sum_to(matmul(dy, right.transpose(-1, -2)), left.shape()) : Tensor(),
            want[1] ? right_gradient(left, right, dy) : Tensor()};
  });
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  OpScope scope(kLinear);
  check_operands(x, "x", weight, "weight");
  XY_CHECK(x.rank() >= 1 && weight.rank() == 2 && x.size(-1) == weight.size(1), "x ", x.shape(),
           " does not end in the inputs of weight ", weight.shape(), " ([out, in])");
  if (bias.defined()) {
    check_operands(x, "x", bias, "bias");
    XY_CHECK(bias.rank() == 1 && bias.size(0) == weight.size(0), "bias ", bias.shape(), " does not fit weight ",
             weight.shape());
  }
  int64_t in = weight.size(1), out = weight.size(0);
  Shape shape = x.shape();
  shape[shape.rank() - 1] = out;
  Tensor y = empty(shape, x.dtype(), x.device());
  int64_t rows = in ? x.numel() / in : shape.numel() / std::max<int64_t>(out, 1);
  no_grad([&] {
    gemm(x.reshape({rows, in}), weight.transpose(0, 1), y.view({rows, out}), false,
         bias.defined() ? bias.contiguous() : bias);
  });
  return record(kLinear, y, {x, weight, bias}, {},
                [x = Saved(x), w = Saved(weight), rows](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor input = x.get(), weight = w.get();
                  int64_t in = weight.size(1), out = weight.size(0);
                  Tensor dy2 = dy.reshape({rows, out});
                  if (want.create_graph())
                    return {want[0] ? matmul(dy2, weight).reshape(input.shape()) : Tensor(),
                            want[1] ? matmul(dy2.transpose(0, 1), input.reshape({rows, in})) : Tensor(),
                            want[2] ? sum(dy2, {0}) : Tensor()};
                  Tensor dx;
                  if (Tensor sum = want[0] ? want.sum_so_far(0, input.dtype()) : Tensor(); sum.defined()) {
                    gemm(dy2, weight, sum.view({rows, in}), true);
                    sum.bump_version();
                  } else if (want[0]) {
                    dx = empty(input.shape(), input.dtype(), input.device());
                    gemm(dy2, weight, dx.view({rows, in}));
                  }
                  Tensor dw = deliver(want, 1, {out, in}, dy2, [&](const Tensor& grad, bool accumulate) {
                    gemm(dy2.transpose(0, 1), input.reshape({rows, in}), grad, accumulate);
                  });
                  Tensor db = deliver(want, 2, {out}, dy2,
                                      [&](const Tensor& grad, bool accumulate) { column_sum(dy2, grad, accumulate); });
                  return {dx, dw, db};
                });
}

}  // namespace xylem
