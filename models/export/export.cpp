// SPDX-License-Identifier: Apache-2.0
#include "models/export/export.h"

#include <algorithm>
#include <cctype>

#include "models/export/pipeline.h"
#include "models/nn/eval_scope.h"

namespace xylem {
namespace exporting {
namespace {

bool uses_format(const TracedGraph& trace, const std::string& format) {
  return std::any_of(trace.nodes.begin(), trace.nodes.end(), [&](const TracedNode& n) {
    return n.spec->is(OpRole::quantizer) && std::get<std::string>(*n.find("format")) == format;
  });
}

}  // namespace

void check_name(const std::string& name, const char* what) {
  bool good = !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) && name[0] != '.';
  for (char c : name) good = good && (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.');
  XY_CHECK(good, what, " '", name, "' needs a name of letters, digits, _ and . that begins with a letter or _");
}

ExportPrecision chosen_precision(const ExportOptions& options) {
  if (options.precision != ExportPrecision::automatic) return options.precision;
  const bool typed = options.profile == Profile::trt10 || options.profile == Profile::trt11;
  return typed ? ExportPrecision::mixed : ExportPrecision::fp32;
}

int chosen_opset(const TracedGraph& trace, const ExportOptions& options, ExportPrecision precision) {
  if (options.opset != 0) {
    XY_CHECK(options.opset >= 13 && options.opset <= 24, "opset ", options.opset, " is outside 13 to 24");
    XY_CHECK(precision != ExportPrecision::bf16 || options.opset >= 22, "opset ", options.opset,
             " has no convolutions in bf16; that needs opset 22");
    return options.opset;
  }
  int opset = 17;
  const bool half = precision == ExportPrecision::fp16 || precision == ExportPrecision::mixed;
  if (half && uses_format(trace, "int8")) opset = 19;
  if (options.profile == Profile::trt10) opset = 19;
  if (options.profile == Profile::trt11) opset = 20;
  if (uses_format(trace, "fp8")) opset = std::max(opset, 19);
  if (uses_format(trace, "int4")) opset = std::max(opset, 21);
  if (precision == ExportPrecision::bf16) opset = std::max(opset, 22);
  return opset;
}

OnnxGraph empty_graph(const TracedGraph& trace, const std::vector<ExportInput>& inputs, const ExportOptions& options) {
  OnnxGraph graph;
  graph.opset = chosen_opset(trace, options, chosen_precision(options));
  graph.ir_version = ir_version_for(graph.opset);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TracedValue& v = trace.values[trace.inputs[i]];
    GraphPort port{inputs[i].name, is_float(v.dtype) ? type::float32 : onnx_type(v.dtype)};
    for (int d = 0; d < inputs[i].example.rank(); ++d) port.dims.push_back({inputs[i].example.size(d), ""});
    for (const auto& [dim, symbol] : inputs[i].dynamic) port.dims[inputs[i].example.dim_index(dim)] = {-1, symbol};
    graph.inputs.push_back(port);
  }
  XY_CHECK(options.outputs.empty() || options.outputs.size() == trace.outputs.size(), "the model has ",
           trace.outputs.size(), " outputs but ", options.outputs.size(), " names were given");
  for (size_t i = 0; i < trace.outputs.size(); ++i)
    graph.outputs.push_back({!options.outputs.empty() ? options.outputs[i]
                             : i == 0                 ? "output"
                                                      : "output_" + std::to_string(i)});
  return graph;
}

ExportReport finish(OnnxGraph& graph, std::vector<std::string> notes, const std::string& file,
                    const ExportOptions& options, ExportPrecision precision) {
  clean_up(graph);
  auto is_tensor = [&](const std::string& name) {
    return graph.values.contains(name) ||
           std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](const GraphPort& in) { return in.name == name; });
  };
  for (const auto& [name, seen] : options.activation_amax)
    if (is_tensor(name)) graph.amax[name] = seen;
  if (precision != ExportPrecision::fp32) {
    PrecisionPlan plan;
    plan.type = precision == ExportPrecision::bf16 ? type::bfloat16 : type::float16;
    plan.by_range = precision == ExportPrecision::mixed;
    assign_precision(graph, plan, notes);
    clean_up(graph);
  }
  graph.metadata = options.metadata;
  auto& m = graph.metadata;
  m["xylem.version"] = XY_VERSION;
  m["xylem.profile"] = name_of(options.profile);
  m["xylem.precision"] = name_of(precision);
  for (const auto& [symbol, r] : options.ranges)
    m["xylem.range." + symbol] = std::to_string(r.min) + "," + std::to_string(r.opt) + "," + std::to_string(r.max);
  for (const auto& [tensor, seen] : graph.amax)
    if (is_tensor(tensor)) m["xylem.amax." + tensor] = detail::concat(seen);
#ifdef XY_WITH_ONNX
  m["xylem.weights_sha256"] = weights_hash(graph);
  write_graph(graph, file, options.external_data, options.external_over);
#else
  XY_FAIL("cannot write '", file,
          "': this build has no ONNX support; install libprotobuf-dev, protobuf-compiler, libssl-dev and the pip "
          "package onnx, "
          "or run scripts/setup.sh, and configure again");
#endif
  return {.file = file,
          .opset = graph.opset,
          .ir_version = graph.ir_version,
          .profile = options.profile,
          .precision = precision,
          .nodes = int64_t(graph.nodes.size()),
          .initializers = int64_t(graph.initializers.size()),
          .weight_bytes = graph.weight_bytes(),
          .notes = std::move(notes)};
}

}  // namespace exporting

ExportReport export_onnx(Module& model, const ExportForward& forward, const std::vector<ExportInput>& inputs,
                         const std::string& file, const ExportOptions& options) {
  using namespace exporting;
  XY_CHECK(!inputs.empty(), "give at least one input with an example");
  for (const ExportInput& in : inputs) {
    check_name(in.name, "input");
    for (const auto& [dim, symbol] : in.dynamic) {
      check_name(symbol, "dynamic dimension");
      in.example.dim_index(dim);
    }
  }
  for (const std::string& name : options.outputs) check_name(name, "output");
  EvalScope evaluation(model);
  TracedGraph traced = trace(model, forward, inputs, options.ranges);
  note_ranges(traced, options.activation_amax);
  std::vector<std::string> notes;
  fold_batch_norm(traced, notes);
  transpose_weights(traced);
  OnnxGraph graph = empty_graph(traced, inputs, options);
  GraphBuilder(graph, traced, options.profile, nullptr, notes).run();
  return finish(graph, std::move(notes), file, options, chosen_precision(options));
}

}  // namespace xylem
