// SPDX-License-Identifier: Apache-2.0
// The output layer of a language model and its loss together. With a vocabulary of 50,000 the logits are the largest
// tensor of a step and their gradient the second; here neither exists as a whole.
#include <algorithm>

#include "core/tensor/dispatch.h"
#include "ops/backend/composed.h"
#include "ops/backend/grad_target.h"
#include "ops/elementwise/scale_into.h"
#include "ops/loss/loss.h"
#include "ops/matmul/matmul.h"

namespace xylem {
namespace {

constexpr int64_t kHeldBytes = int64_t(1) << 30;  // of logits

std::vector<Sample> samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& hidden, int64_t classes, const CrossEntropyArgs& args) {
    Shape rows = hidden;
    rows.erase(rows.rank() - 1);
    list.push_back(
        {name,
         {sample_normal(hidden), sample_normal({classes, hidden.back()}, 0.5, 2), sample_index(rows, classes)},
         [args](const Tensors& t) -> Tensors { return {linear_cross_entropy(t[0], t[1], t[2], args)}; }});
  };
  add("words", {2, 5, 8}, 11, {});
  add("smoothing", {7, 4}, 12, {.label_smoothing = 0.1});
  add("sum", {6, 3}, 10, {.ignore_index = 3, .reduction = LossReduction::sum});
  add("many classes", {3, 8}, 2003, {});
  add("no rows", {0, 4}, 5, {});
  return list;
}

const OpSpec& kLinearCrossEntropy = (new OpSpec("linear_cross_entropy"))
                                        ->samples(samples)
                                        .flops([](std::span<const Tensor> in, std::span<const Tensor>) {
                                          return 2.0 * double(in[0].numel()) * double(in[1].size(0));
                                        })
                                        .tolerance(1e-5, 4e-2)
                                        .double_backward()
                                        .not_exportable("it is a loss: export the forward pass up to the logits");

// As few parts of equal size as keep the logits of one below the limit.
int64_t rows_at_once(int64_t rows, int64_t row_bytes, int64_t limit) {
  const int64_t fewest = std::max<int64_t>(1, (rows * row_bytes + limit - 1) / limit);
  for (int64_t parts = fewest; parts < 2 * fewest; ++parts)
    if (rows % parts == 0) return rows / parts;
  return (rows + fewest - 1) / fewest;
}

// What the forward pass computes: the loss and, where they are wanted, the gradients of the rows' summed losses.
struct Pass {
  Tensor loss, inverse_count;
  Tensor dhidden = {};  // [rows, C], hidden's type
  Tensor dweight = {};  // [V, C] in compute_type
};

Pass run(const Tensor& hidden, const Tensor& weight, const Tensor& targets, const CrossEntropyArgs& args,
         bool want_hidden, bool want_weight, int64_t held_bytes) {
  const int64_t rows = targets.numel(), classes = weight.size(0), width = weight.size(1);
  const DType type = compute_type(hidden.dtype());
  const Device device = hidden.device();
  Tensor x = hidden.view({rows, width});
  Pass p{.loss = empty({}, type, device), .inverse_count = empty({}, type, device)};
  if (want_hidden) p.dhidden = empty({rows, width}, hidden.dtype(), device);
  if (want_weight) p.dweight = empty({classes, width}, type, device);
  if (want_weight && rows == 0) p.dweight.zero_();
  Tensor row_loss = empty({rows}, type, device);
  const int64_t step = rows_at_once(rows, classes * int64_t(size_of(hidden.dtype())), held_bytes);
  Tensor held = empty({std::min(rows, step), classes}, hidden.dtype(), device);
  for (int64_t from = 0; from < rows; from += step) {
    const int64_t count = std::min(step, rows - from);
    Tensor part = x.narrow(0, from, count), logits = held.narrow(0, 0, count);
    gemm(part, weight.transpose(0, 1), logits);
    CrossEntropy c{.logits = logits,
                   .targets = targets.narrow(0, from, count),
                   .row_loss = row_loss.narrow(0, from, count),
                   .rows = count,
                   .classes = classes,
                   .args = args};
    if (want_hidden || want_weight) c.dlogits = logits;
    XY_ON_DEVICE(logits, cross_entropy_rows, c);
    if (want_hidden) gemm(logits, weight, p.dhidden.narrow(0, from, count));
    if (want_weight) gemm(logits.transpose(0, 1), part, p.dweight, from > 0);
  }
  CrossEntropy all{.targets = targets,
                   .row_loss = row_loss,
                   .loss = p.loss,
                   .inverse_count = p.inverse_count,
                   .rows = rows,
                   .classes = classes,
                   .args = args};
  all.logits = held;  // for its type
  XY_ON_DEVICE(held, cross_entropy_total, all);
  return p;
}

// gradient * factor into the leaf's own buffer where there is one.
Tensor deliver(const Wanted& want, int input, const Tensor& gradient, const Shape& shape, DType dtype,
               const Tensor& factor) {
  if (!want[input]) return {};
  Tensor value = gradient.view(shape);
  if (auto sink = want.sink(input); sink && (sink->grad.dtype() == gradient.dtype() || gradient.dtype() == f32)) {
    scale_into(sink->grad, value, factor, sink->accumulate);
    want.wrote(input);
    return {};
  }
  Tensor out = empty(shape, dtype, gradient.device());
  scale_into(out, value, factor, false);
  return out;
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyArgs& args) {
  return linear_cross_entropy_within(hidden, weight, targets, args, kHeldBytes);
}

Tensor linear_cross_entropy_within(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                                   const CrossEntropyArgs& args, int64_t held_bytes) {
  OpScope scope(kLinearCrossEntropy);
  XY_CHECK(hidden.defined() && weight.defined() && targets.defined(), "hidden, weight and targets must be defined");
  XY_CHECK(hidden.rank() >= 1 && weight.rank() == 2 && hidden.size(-1) == weight.size(1), "hidden ", hidden.shape(),
           " does not end in the inputs of weight ", weight.shape(), " ([classes, inputs])");
  XY_CHECK(hidden.dtype() == weight.dtype() && hidden.device() == weight.device(), "hidden is ", hidden.dtype(), " on ",
           hidden.device(), " but weight is ", weight.dtype(), " on ", weight.device());
  Shape logits = hidden.shape();
  logits[logits.rank() - 1] = weight.size(0);
  check_cross_entropy(logits, hidden.dtype(), hidden.device(), targets, args);

  Tensor ids = packed(targets, i64).view({targets.numel()});
  const bool recorded = grad_enabled();
  Pass p = no_grad([&] {
    return run(packed(hidden), packed(weight), ids, args, recorded && hidden.requires_grad(),
               recorded && weight.requires_grad(), held_bytes);
  });
  return record(kLinearCrossEntropy, p.loss, {hidden, weight, targets}, cross_entropy_attrs(args),
                [x = Saved(hidden), w = Saved(weight), ids, p, args](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor hidden = x.get(), weight = w.get();
                  if (want.create_graph()) {
                    auto fn = [&](const Tensors& t) -> Tensors {
                      return {cross_entropy_composition(linear(t[0], t[1]), ids, p.inverse_count, args)};
                    };
                    return composed_backward(fn, {hidden, weight, {}}, {want[0], want[1], false}, {dy});
                  }
                  Tensor factor = dy * p.inverse_count;
                  return {deliver(want, 0, p.dhidden, hidden.shape(), hidden.dtype(), factor),
                          deliver(want, 1, p.dweight, weight.shape(), weight.dtype(), factor),
                          {}};
                });
}

}  // namespace xylem
