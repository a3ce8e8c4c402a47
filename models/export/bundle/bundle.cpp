// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/bundle.h"

#include <algorithm>
#include <cstdio>

#include "core/autograd/autograd.h"
#include "core/util/check.h"
#include "models/export/bundle/parts.h"
#include "models/nn/eval_scope.h"

namespace xylem {
namespace {

bool any_failed(const std::vector<BundleCheck>& checks) {
  return std::any_of(checks.begin(), checks.end(), [](const BundleCheck& c) { return !c.passed; });
}

void print_checks(const std::vector<BundleCheck>& checks, std::string& out) {
  char line[256];
  std::snprintf(line, sizeof line, "  %-9s %-10s %-9s %-14s %s\n", "optimized", "worst", "limit", "over 1/2 LSB",
                "shapes");
  out += line;
  for (const BundleCheck& c : checks) {
    std::snprintf(line, sizeof line, "  %-9s %-10.2e %-9.0e %-14.4f %s%s\n", c.optimized ? "yes" : "no", c.worst,
                  c.limit, c.over_half_lsb, c.shapes.c_str(), c.passed ? "" : "   TOO FAR");
    out += line;
  }
}

void print_engine(const EngineCheck& e, std::string& out) {
  char line[256];
  if (e.runtime.empty()) {
    out += "\nNo engine was built: " + e.not_run + "\n";
    return;
  }
  out += "\n" + e.runtime + "\n";
  for (const std::string& text : e.said) out += "  " + text + "\n";
  if (!e.built) {
    out += "  REFUSES the model\n";
    return;
  }
  std::snprintf(line, sizeof line, "  takes the model: an engine of %.2f MB in %.1f s\n", double(e.bytes) / 1e6,
                e.seconds);
  out += line;
  if (!e.not_run.empty()) out += "  the engine was not run: " + e.not_run + "\n";
  if (e.runs.empty()) return;
  print_checks(e.runs, out);
  std::snprintf(line, sizeof line, "  %.3f ms an inference\n", e.milliseconds);
  out += line;
}

}  // namespace

bool BundleReport::failed() const {
  return lint.has(LintSeverity::error) || !(checker.empty() || checker == "passed") || (engine && engine->refused()) ||
         any_failed(checks) || (engine && any_failed(engine->runs));
}

std::string BundleReport::text() const {
  char line[256];
  std::snprintf(line, sizeof line, "%s: opset %d, IR %d, %s, %lld nodes, %.2f MB\n", exported.file.c_str(),
                exported.opset, exported.ir_version, name_of(exported.profile), static_cast<long long>(exported.nodes),
                double(model_bytes) / 1e6);
  std::string out = line;
  for (const std::string& note : exported.notes) out += "  " + note + "\n";
  out += "\nlint\n" + lint.text();
  if (!checker.empty()) out += "\nonnx checker: " + checker + "\n";
  if (!checks.empty()) {
    out += checks[0].imported ? "\nThe file, imported again, against Xylem: ONNX Runtime's CPU has few bf16 kernels"
                              : "\nONNX Runtime against Xylem";
    out += " (largest difference as a share of the largest value)\n";
    print_checks(checks, out);
  }
  if (engine) print_engine(*engine, out);
  if (!unchecked.empty()) out += "\n";
  for (const std::string& what : unchecked) out += "NOT verified: " + what + "\n";
  out += failed() ? "\nNOT passed\n" : passed() ? "\npassed\n" : "\nNOT verified in full\n";
  return out;
}

BundleReport export_bundle(Module& model, const ExportForward& forward, const std::vector<ExportInput>& inputs,
                           const std::string& folder, const BundleOptions& given) {
  EvalScope evaluation(model);
  BundleOptions options = given;
  options.graph.ranges = complete_ranges(inputs, options.graph.ranges);
  BundleParts parts;
  for (const ExportInput& in : inputs) parts.inputs.push_back(in.name);
  parts.write = [&](const std::string& file, const ExportOptions& graph) {
    return export_onnx(model, forward, inputs, file, graph);
  };
  parts.reference = [&](const std::string&) {
    Tensors x = random_inputs(inputs, checked_sizes(inputs, options.graph.ranges).front(), 7);
    return std::pair(x, no_grad([&] { return forward(x); }));
  };
  parts.verify = [&](const std::string& file, const ExportOptions& graph, bool quantized) {
    return verify_in_runtime(file, forward, inputs, graph, quantized);
  };
  return write_bundle(parts, folder, options);
}

#ifndef XY_WITH_ONNX
BundleReport write_bundle(BundleParts&, const std::string&, const BundleOptions&) {
  XY_FAIL(
      "this build has no ONNX support; install libprotobuf-dev, protobuf-compiler and the pip package onnx, or run "
      "scripts/setup.sh, and build again");
}
#endif

}  // namespace xylem
