// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/loss.h"

#include "core/tensor/dispatch.h"
#include "ops/backend/composed.h"
#include "ops/backend/grad_target.h"
#include "ops/loss/loss_lowering.h"
#include "ops/ops.h"

namespace xylem {
namespace {

std::vector<Sample> cross_entropy_samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Tensor& logits, const Tensor& targets, const CrossEntropyArgs& args) {
    list.push_back(
        {name, {logits, targets}, [args](const Tensors& t) -> Tensors { return {cross_entropy(t[0], t[1], args)}; }});
  };
  add("digits", sample_normal({6, 10}), sample_index({6}, 10), {});
  add("sequences", sample_normal({2, 5, 37}), sample_index({2, 5}, 37), {});
  add("smoothing", sample_normal({7, 12}), sample_index({7}, 12), {.label_smoothing = 0.1});
  add("ignored", sample_normal({8, 5}), sample_index({8}, 5), {.ignore_index = 2, .label_smoothing = 0.2});
  add("all ignored", sample_normal({3, 5}), full({3}, -100, i64), {});
  add("one class", sample_normal({4, 1}), zeros({4}, i64), {});
  add("large logits", sample_normal({5, 33}, 30), sample_index({5}, 33), {});
  add("many classes", sample_normal({3, 5003}), sample_index({3}, 5003), {});
  add("no rows", sample_normal({0, 9}), zeros({0}, i64), {});
  add("sum", sample_normal({6, 10}), sample_index({6}, 10), {.ignore_index = 3, .reduction = LossReduction::sum});
  return list;
}

std::vector<Sample> mse_samples() {
  std::vector<Sample> list;
  for (auto& [name, shape] : {std::pair("matrix", Shape{5, 7}), {"one", Shape{1}}, {"large", Shape{3, 4000}}})
    list.push_back({name, {sample_normal(shape), sample_normal(shape, 1, 2)}, [](const Tensors& t) -> Tensors {
                      return {mse_loss(t[0], t[1])};
                    }});
  return list;
}

const OpSpec& kCrossEntropy = (new OpSpec("cross_entropy"))
                                  ->samples(cross_entropy_samples)
                                  .double_backward()
                                  .not_exportable("it is a loss: export the forward pass up to the logits");
const OpSpec& kMse = (new OpSpec("mse_loss"))->onnx(lower_mse_loss).samples(mse_samples).double_backward();

}  // namespace

Attrs cross_entropy_attrs(const CrossEntropyArgs& args) {
  return {{"ignore_index", args.ignore_index},
          {"label_smoothing", args.label_smoothing},
          {"reduction", std::string(args.reduction == LossReduction::mean ? "mean" : "sum")}};
}

// Targets as a [rows, classes] weight.
Tensor cross_entropy_composition(const Tensor& logits, const Tensor& targets, const Tensor& inverse_count,
                                 const CrossEntropyArgs& args) {
  const DType type = compute_type(logits.dtype());
  const int64_t classes = logits.size(-1), rows = targets.numel();
  Tensor ids = targets.reshape({rows, 1});
  Tensor used = ones({rows, 1}, type, ids.device()) - eq(ids, double(args.ignore_index)).to(type);
  Tensor hot = eq(arange(classes, i64, ids.device()).reshape({1, classes}), ids).to(type) * (1 - args.label_smoothing);
  Tensor weight = (hot + args.label_smoothing / double(classes)) * used;
  return sum(weight * log_softmax(logits.to(type).reshape({rows, classes}))) * inverse_count * -1;
}

void check_cross_entropy(const Shape& shape, DType dtype, Device device, const Tensor& targets,
                         const CrossEntropyArgs& args) {
  XY_CHECK(is_float(dtype), "logits must be floating point, not ", dtype);
  XY_CHECK(shape.rank() >= 1 && shape.back() >= 1, "logits need at least one class, but their shape is ", shape);
  XY_CHECK(targets.dtype() == i64 || targets.dtype() == i32, "targets must be i64 or i32, not ", targets.dtype());
  XY_CHECK(targets.device() == device, "targets are on ", targets.device(), " and logits on ", device);
  Shape expected = shape;
  expected.erase(expected.rank() - 1);
  XY_CHECK(targets.shape() == expected, "targets of shape ", targets.shape(), " do not fit logits of shape ", shape,
           ", which need ", expected);
  XY_CHECK(args.label_smoothing >= 0 && args.label_smoothing < 1, "label_smoothing must be in [0, 1), not ",
           args.label_smoothing);
}

const Fault kTargetOutside("cross_entropy", [](int64_t target, int64_t classes) {
  return detail::concat("target ", target, " is outside the ", classes, " classes and is not ignore_index");
});

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyArgs& args) {
  OpScope scope(kCrossEntropy);
  check_cross_entropy(logits.shape(), logits.dtype(), logits.device(), targets, args);
  const DType type = compute_type(logits.dtype());
  const Device device = logits.device();
  CrossEntropy c{.logits = packed(logits),
                 .targets = packed(targets, i64),
                 .rows = targets.numel(),
                 .classes = logits.size(-1),
                 .args = args};
  c.lse = empty({c.rows}, type, device);
  c.row_loss = empty({c.rows}, type, device);
  c.loss = empty({}, type, device);
  c.inverse_count = empty({}, type, device);
  XY_ON_DEVICE(logits, cross_entropy_rows, c);
  XY_ON_DEVICE(logits, cross_entropy_total, c);
  return record(kCrossEntropy, c.loss, {logits, targets}, cross_entropy_attrs(args),
                [logits = Saved(logits), targets = Saved(c.targets), lse = c.lse, inverse_count = c.inverse_count,
                 args](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor x = logits.get();
                  if (want.create_graph()) {
                    auto fn = [&](const Tensors& t) -> Tensors {
                      return {cross_entropy_composition(t[0], targets.get(), inverse_count, args)};
                    };
                    return composed_backward(fn, {x, {}}, {true, false}, {dy});
                  }
                  CrossEntropy c{.logits = packed(x),
                                 .targets = targets.get(),
                                 .lse = lse,
                                 .inverse_count = inverse_count,
                                 .grad = packed(dy),
                                 .dlogits = empty(x.shape(), x.dtype(), x.device()),
                                 .rows = lse.numel(),
                                 .classes = x.size(-1),
                                 .args = args};
                  if (c.rows > 0) XY_ON_DEVICE(x, cross_entropy_backward, c);
                  return {c.dlogits, {}};
                });
}

Tensor mse_loss(const Tensor& x, const Tensor& target) {
  OpScope scope(kMse);
  XY_CHECK(x.shape() == target.shape(), "x of shape ", x.shape(), " and target of shape ", target.shape(), " differ");
  XY_CHECK(is_float(x.dtype()) && x.dtype() == target.dtype(), "x (", x.dtype(), ") and target (", target.dtype(),
           ") must hold one floating point type");
  XY_CHECK(x.device() == target.device(), "x is on ", x.device(), " and target on ", target.device());
  XY_CHECK(x.numel() > 0, "the mean over no elements (shape ", x.shape(), ") is undefined");
  Tensor loss = empty({}, compute_type(x.dtype()), x.device());
  XY_ON_DEVICE(x, mse, packed(x), packed(target), loss);
  return record(kMse, loss, {x, target}, {},
                [x = Saved(x), target = Saved(target)](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor a = x.get(), b = target.get();
                  if (want.create_graph()) {
                    Tensor dx = ((a - b).to(dy.dtype()) * dy * (2.0 / double(a.numel()))).to(a.dtype());
                    return {dx, want[1] ? -dx : Tensor()};
                  }
                  Tensor dx = want[0] ? empty(a.shape(), a.dtype(), a.device()) : Tensor();
                  Tensor dtarget = want[1] ? empty(a.shape(), a.dtype(), a.device()) : Tensor();
                  XY_ON_DEVICE(a, mse_backward, packed(a), packed(b), packed(dy), dx, dtarget);
                  return {dx, dtarget};
                });
}

}  // namespace xylem
