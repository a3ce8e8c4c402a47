// SPDX-License-Identifier: Apache-2.0
// The rules of the lint, by theme. docs/lint.md lists them with their thresholds and sources.
#pragma once
#include <functional>
#include <sstream>

#include "models/export/lint/graph_onnx.h"
#include "models/export/lint/lint.h"
#include "models/export/runtime/target.h"

namespace xylem::lint {

struct Rules {
  const Graph& graph;
  const Target& target;
  LintReport& report;
  const std::vector<Weighted> layers;

  template <class... Parts>
  void error(const char* id, const std::string& node, const Parts&... parts) const {
    add(id, LintSeverity::error, node, parts...);
  }
  template <class... Parts>
  void warning(const char* id, const std::string& node, const Parts&... parts) const {
    add(id, LintSeverity::warning, node, parts...);
  }
  template <class... Parts>
  void info(const char* id, const std::string& node, const Parts&... parts) const {
    add(id, LintSeverity::info, node, parts...);
  }

 private:
  template <class... Parts>
  void add(const char* id, LintSeverity severity, const std::string& node, const Parts&... parts) const {
    std::ostringstream text;
    (text << ... << parts);
    report.findings.push_back({id, severity, node, text.str()});
  }
};

void check_files(const Rules& r);                                 // F: names, external data
void check_structure(const Rules& r);                             // R: what TensorRT's importer insists on
void check_operators(const Rules& r);                             // O: opset, operators and their attributes
void check_shapes(const Rules& r);                                // S, I: dynamic dimensions, integers
void check_alignment(const Rules& r);                             // A: channel counts and heads that Tensor Cores like
void check_precision(const Rules& r);                             // P: 16-bit floats
void check_quantization(const Rules& r);                          // Q: where Q/DQ pairs are and are not
void check_build(const Rules& r, const std::string& model_file);  // B: what TensorRT itself says
void count_totals(const Rules& r);

}  // namespace xylem::lint
