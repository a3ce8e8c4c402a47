// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>

#include "core/autograd/autograd.h"
#include "core/util/check.h"
#include "models/export/bundle/parts.h"
#include "models/export/import/import.h"
#include "models/export/runtime/ort.h"

namespace xylem {

// fp32: 1e-5 of the largest value plus 1e-4 relative. 16-bit carriers round every tensor on the way. A quantized graph
// is exact to one step of 1/127 in fp32, where a tie may be rounded the other way; a 16-bit carrier makes more of them.
// ONNX Runtime's optimized integer kernels round biases too, which moves the results of coarse networks visibly.
Limits limits_of(const ExportOptions& o, bool quantized, bool optimized) {
  if (quantized && o.profile == Profile::ort_cpu) return {0.1, 0};  // one more rounding than was trained, by intent
  bool half = o.precision == ExportPrecision::fp16 || o.precision == ExportPrecision::mixed;
  if (quantized) return {optimized ? 0.1 : half ? 2.0 / 127 : 1.0 / 127, 0};
  if (o.precision == ExportPrecision::bf16) return {5e-2, 0};
  return half ? Limits{1e-2, 0} : Limits{1e-5, 1e-4};
}

BundleCheck compare(const Tensors& got, const Tensors& want, const Limits& limits) {
  BundleCheck check;
  check.limit = limits.of_largest;
  check.passed = true;
  int64_t off = 0, all = 0;
  for (size_t k = 0; k < want.size(); ++k) {
    std::vector<double> a = got[k].to_vector<double>(), b = want[k].to_vector<double>();
    XY_CHECK(got[k].shape() == want[k].shape(), "the exported model gives output ", k, " the shape ", got[k].shape(),
             " where the model gives ", want[k].shape());
    double largest = 0;
    for (double v : b) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < a.size(); ++i) {
      double d = std::abs(a[i] - b[i]);
      if (!(d <= limits.of_largest * largest + limits.relative * std::abs(b[i]))) check.passed = false;
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
      check.worst = std::max(check.worst, largest > 0 ? d / largest : d);
      off += d > largest / 254;
    }
    all += int64_t(a.size());
  }
  check.over_half_lsb = all ? double(off) / double(all) : 0;
  return check;
}

std::vector<BundleCheck> verify_in_runtime(const std::string& model_file, const ExportForward& forward,
                                           const std::vector<ExportInput>& inputs, const ExportOptions& options,
                                           bool quantized) {
  std::vector<BundleCheck> checks;
  const bool exact_carrier = options.profile != Profile::ort_cpu && options.precision == ExportPrecision::fp32;
  auto run_all = [&](const std::function<Tensors(const Tensors&)>& run, bool optimized, bool imported) {
    uint64_t seed = 1;
    for (const auto& sizes : checked_sizes(inputs, options.ranges)) {
      Tensors x = random_inputs(inputs, sizes, seed++);
      Tensors want = no_grad([&] { return forward(x); });
      BundleCheck check = compare(run(x), want, limits_of(options, quantized, optimized));
      if (quantized && !optimized && exact_carrier && check.over_half_lsb > 1e-3) check.passed = false;
      check.optimized = optimized;
      check.imported = imported;
      for (size_t i = 0; i < x.size(); ++i) {
        check.shapes += (i ? "," : "") + inputs[i].name + ":";
        for (int d = 0; d < x[i].rank(); ++d) check.shapes += (d ? "x" : "") + std::to_string(x[i].size(d));
      }
      checks.push_back(check);
    }
  };
  if (options.precision == ExportPrecision::bf16) {
    OnnxModule model = import_onnx(model_file);
    auto run = [&](const Tensors& x) {
      Tensors host;
      for (const Tensor& t : x) host.push_back(t.to(Device::cpu()));
      return no_grad([&] { return model(host); });
    };
    run_all(run, false, true);
    return checks;
  }
  for (bool optimized : {false, true}) {
    OrtSession session(model_file, {.optimize = optimized});
    run_all([&](const Tensors& x) { return session.run(x); }, optimized, false);
  }
  return checks;
}

}  // namespace xylem
