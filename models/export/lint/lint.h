// SPDX-License-Identifier: Apache-2.0
// Checks an ONNX file for a deployment target: what the runtime would refuse, compute wrongly or run slowly. The rules
// and their sources are in docs/lint.md.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace xylem {

enum class LintSeverity { info, warning, error };
const char* name_of(LintSeverity s);

struct LintFinding {
  std::string id;  // "Q5"
  LintSeverity severity = LintSeverity::warning;
  std::string node;     // or tensor
  std::string message;  // with the remedy
};

struct LintReport {
  std::string target;
  std::vector<LintFinding> findings;
  std::map<std::string, double> totals;  // MACs by type, weight bytes, ...
  bool has(LintSeverity at_least) const;
  std::string text() const;
  std::string json() const;  // {"findings": [{"id", "severity", "node", "message"}], "totals": {...}}
};

struct LintOptions {
  // Sizes of dynamic dimensions, {min, opt, max} by symbol; those written into the model by export_onnx are known.
  std::map<std::string, std::vector<int64_t>> ranges = {};
  bool build = false;  // let TensorRT parse the file and build an engine too; what it says becomes findings B1 and B2
};

// `target` is "trt8.4" to "trt11.1" or "ort-cpu". Throws for a file that is no ONNX model, and for an unknown target,
// listing those that are known.
LintReport lint_onnx(const std::string& model_file, const std::string& target, const LintOptions& options = {});

}  // namespace xylem
