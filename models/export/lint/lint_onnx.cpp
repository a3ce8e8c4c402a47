// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include "core/util/check.h"
#include "models/export/lint/rules_onnx.h"
#include "models/export/onnx_file.h"

namespace xylem {

LintReport lint_onnx(const std::string& model_file, const std::string& target_name, const LintOptions& options) {
  lint::Target target = lint::parse_target(target_name);
  LintReport report;
  report.target = target.name;
  onnx::ModelProto stored;  // with the references to external data, which loading resolves
  onnx::ModelProto model;
  {
    std::ifstream in(model_file, std::ios::binary);
    XY_CHECK(in, "cannot read '", model_file, "'");
    if (!stored.ParseFromIstream(&in)) stored.Clear();
  }
  bool external_is_whole = true;
  try {
    onnx_file::load(model_file, model);
  } catch (const Error& e) {
    if (!stored.has_graph() || stored.graph().node_size() == 0) throw;
    report.findings.push_back({"F1", LintSeverity::error, "model", e.message()});
    external_is_whole = false;
  }
  lint::Graph on_disk(stored, options.ranges), whole(external_is_whole ? model : stored, options.ranges);
  check_files(lint::Rules{on_disk, target, report, {}});
  lint::Rules rules{whole, target, report, lint::weighted_layers(whole)};
  check_structure(rules);
  check_operators(rules);
  check_shapes(rules);
  check_alignment(rules);
  check_precision(rules);
  check_quantization(rules);
  count_totals(rules);
  return report;
}

}  // namespace xylem
