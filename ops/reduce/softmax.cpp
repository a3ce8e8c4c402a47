// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dispatch.h"
#include "ops/ops.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/reduce_lowering.h"

namespace xylem {
namespace {

std::vector<Sample> softmax_samples(Tensor (*f)(const Tensor&, int)) {
  auto sample = [&](const char* name, const Shape& shape, int dim, double spread) {
    return Sample{
        name, {sample_normal(shape, spread)}, [f, dim](const Tensors& t) -> Tensors { return {f(t[0], dim)}; }};
  };
  return {sample("rows", {4, 33}, -1, 1),  sample("long rows", {2, 3001}, -1, 3), sample("middle", {2, 5, 3}, 1, 1),
          sample("large", {3, 8}, -1, 50), sample("one", {3, 1}, -1, 1),          sample("empty", {0, 4}, -1, 1)};
}
double five_per_input(std::span<const Tensor> in, std::span<const Tensor>) { return 5.0 * double(in[0].numel()); }

const OpSpec& kSoftmax =
    (new OpSpec("softmax"))->double_backward().onnx(lower_softmax("Softmax")).flops(five_per_input).samples([] {
      return softmax_samples(softmax);
    });
const OpSpec& kLogSoftmax =
    (new OpSpec("log_softmax"))->double_backward().onnx(lower_softmax("LogSoftmax")).flops(five_per_input).samples([] {
      return softmax_samples(log_softmax);
    });

Tensor softmax_last(const OpSpec& spec, const Tensor& input, bool log) {
  OpScope scope(spec);
  XY_CHECK(is_float(input.dtype()), "needs a floating point tensor but got ", input.dtype());
  Tensor x = input.detach().contiguous(), y = empty(x.shape(), x.dtype(), x.device());
  if (x.numel() > 0) XY_ON_DEVICE(x, softmax, x, y, log);
  return record(spec, y, {input}, {{"dim", int64_t(-1)}},
                [y = Saved::output(y), log](const Tensor& dy, const Wanted& want) -> Tensors {
                  Tensor out = y.get();
                  if (want.create_graph()) {
                    if (log) return {dy - exp(out) * sum(dy, {-1}, true)};
                    return {out * (dy - sum(dy * out, {-1}, true))};
                  }
                  Tensor g = dy.contiguous(), dx = empty(g.shape(), g.dtype(), g.device());
                  if (g.numel() > 0) XY_ON_DEVICE(g, softmax_backward, g, out, dx, log);
                  return {dx};
                });
}

Tensor softmax_any(const OpSpec& spec, const Tensor& x, int dim, bool log) {
  dim = x.dim_index(dim);
  if (dim == x.rank() - 1) return softmax_last(spec, x, log);
  return softmax_last(spec, x.transpose(dim, -1), log).transpose(dim, -1);
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) { return softmax_any(kSoftmax, x, dim, false); }
Tensor log_softmax(const Tensor& x, int dim) { return softmax_any(kLogSoftmax, x, dim, true); }

}  // namespace xylem
