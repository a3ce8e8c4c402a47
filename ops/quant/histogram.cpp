// SPDX-License-Identifier: Apache-2.0
#include "ops/quant/histogram.h"

#include <mutex>

#include "core/autograd/autograd.h"
#include "core/tensor/dispatch.h"
#include "core/util/parallel.h"
#include "ops/backend/grad_target.h"
#include "ops/quant/quant.h"

namespace xylem {
namespace cpu {

void abs_histogram(const Tensor& x, double per_bin, const Tensor& counts) {
  const int64_t bins = counts.numel();
  std::mutex joining;  // whole numbers: the order of the parts does not show
  visit_float(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = acc_t<T>;
    const T* in = x.data<T>();
    parallel_for(x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> mine(static_cast<size_t>(bins));
      for (int64_t i = begin; i < end; ++i)
        if (int64_t bin = bin_of(A(in[i]), A(per_bin), bins); bin >= 0) ++mine[static_cast<size_t>(bin)];
      std::lock_guard lock(joining);
      for (int64_t b = 0; b < bins; ++b) counts.data<int64_t>()[b] += mine[static_cast<size_t>(b)];
    });
  });
}

}  // namespace cpu

namespace {

std::vector<Sample> samples() {
  std::vector<Sample> list;
  auto add = [&](const char* name, const Shape& shape, double range, int64_t bins) {
    list.push_back({name, {sample_normal(shape)}, [=](const Tensors& t) -> Tensors {
                      return {abs_histogram(t[0], range, bins)};
                    }});
  };
  add("small", {3, 5}, 2, 8);
  add("clipped", {4, 70}, 0.5, 16);
  add("many bins", {7, 301}, 4, 2048);
  add("more bins than fit on chip", {50}, 4, 1 << 17);
  add("long", {70001}, 4, 512);
  add("one bin", {9}, 1, 1);
  add("scalar", {}, 4, 8);
  add("empty", {0, 3}, 1, 4);
  return list;
}
const OpSpec& kHistogram = (new OpSpec("abs_histogram"))
                               ->samples(samples)
                               .not_differentiable()
                               .not_exportable("it observes a model that is being calibrated");

}  // namespace

Tensor abs_histogram(const Tensor& x, double range, int64_t bins) {
  OpScope scope(kHistogram);
  XY_CHECK(is_float(x.dtype()), "x must be floating point, not ", x.dtype());
  XY_CHECK(range > 0 && bins > 0, "needs a range and bins above 0 but got ", range, " and ", bins);
  Tensor counts = zeros({bins}, i64, x.device());
  if (x.numel() > 0) XY_ON_DEVICE(x, abs_histogram, packed(x), double(bins) / range, counts);
  return record(kHistogram, counts, {x}, {{"range", range}, {"bins", bins}});
}

}  // namespace xylem
