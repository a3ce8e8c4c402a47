// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "core/util/check.h"
#include "models/export/lint/rules_onnx.h"
#include "models/export/onnx/file.h"

namespace xylem {

LintReport lint_onnx(const std::string& model_file, const std::string& target_name, const LintOptions& options) {
  lint::Target target = lint::parse_target(target_name);
  LintReport report;
  report.target = target.name;
  onnx::ModelProto model;
  onnx_file::load(model_file, model, false);
  std::optional<std::string> folder = std::filesystem::path(model_file).parent_path().string();
  try {
    onnx_file::check_external(*folder, model);
  } catch (const Error& e) {
    if (model.graph().node_size() == 0) throw;
    report.findings.push_back({"F1", LintSeverity::error, "model", e.message()});
    folder.reset();
  }
  lint::Graph graph(model, options.ranges, folder);
  lint::Rules rules{graph, target, report, lint::weighted_layers(graph)};
  check_files(rules);
  check_structure(rules);
  check_operators(rules);
  check_shapes(rules);
  check_alignment(rules);
  check_precision(rules);
  check_quantization(rules);
  if (options.build) check_build(rules, model_file);
  count_totals(rules);
  return report;
}

}  // namespace xylem
