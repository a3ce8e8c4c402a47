// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/engine_check.h"

#include <algorithm>

#include "core/device/device.h"
#include "models/export/runtime/tensorrt.h"

namespace xylem {
namespace {

tensorrt::BuildOptions build_options(const triton::Model& model) {
  tensorrt::BuildOptions options;
  for (const triton::Port& p : model.inputs)
    options.sizes[p.name] = {.min = triton::sizes(model, p, triton::At::min),
                             .opt = triton::sizes(model, p, triton::At::opt),
                             .max = triton::sizes(model, p, triton::At::max)};
  return options;
}

std::string sentence(const tensorrt::Message& m) {
  const char* kind = m.severity == tensorrt::Message::Severity::error ? "error: " : "warning: ";
  std::string where = m.node.empty() ? "" : m.node + (m.op.empty() ? "" : " (" + m.op + ")") + ": ";
  return kind + where + m.text;
}

// The reference inputs are given in the order of the file's inputs; the engine has its own.
Tensors in_order(const std::vector<std::string>& wanted, const std::vector<triton::Port>& ports, const Tensors& given) {
  Tensors ordered;
  for (const std::string& name : wanted) {
    auto port = std::find_if(ports.begin(), ports.end(), [&](const triton::Port& p) { return p.name == name; });
    XY_CHECK(port != ports.end(), "the engine has '", name, "', which the model has not");
    ordered.push_back(given[size_t(port - ports.begin())]);
  }
  return ordered;
}

double median_milliseconds(const tensorrt::Engine& engine, const Tensors& inputs) {
  constexpr int kRuns = 50;
  const Stream stream = current_stream(inputs[0].device());
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    Event begin(true), end(true);
    begin.record(stream);
    engine.run(inputs);
    end.record(stream);
    end.synchronize();
    times.push_back(end.elapsed_ms(begin));
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

void run(EngineCheck& check, const std::string& engine_file, const triton::Model& model, const Tensors& inputs,
         const Tensors& outputs, const Limits& limits) {
  tensorrt::Engine engine(engine_file);
  Tensors x = in_order(engine.inputs(), model.inputs, inputs);
  for (Tensor& t : x) t = t.to(Device::cuda());
  Tensors y = engine.run(x);
  for (Tensor& t : y) t = t.to(Device::cpu());
  BundleCheck result = compare(y, in_order(engine.outputs(), model.outputs, outputs), limits);
  result.optimized = true;
  result.shapes = "those of reference/";
  check.runs.push_back(result);
  check.milliseconds = median_milliseconds(engine, x);
}

}  // namespace

EngineCheck check_engine(const std::string& file, const triton::Model& model, const Tensors& inputs,
                         const Tensors& outputs, const Limits& limits) {
  EngineCheck check{.runtime = tensorrt::version()};
  tensorrt::Build build = tensorrt::build(file, build_options(model));
  check.built = build.built();
  check.bytes = int64_t(build.engine.size());
  check.seconds = build.seconds;
  for (const tensorrt::Message& m : build.messages) check.said.push_back(sentence(m));
  if (!check.built) return check;
  if (!cuda_available()) {
    check.not_run = "this process sees no GPU";
    return check;
  }
  try {
    run(check, build.engine, model, inputs, outputs, limits);
  } catch (const Error& e) {
    check.not_run = e.message();
  }
  return check;
}

}  // namespace xylem
