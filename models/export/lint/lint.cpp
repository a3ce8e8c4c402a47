// SPDX-License-Identifier: Apache-2.0
#include "models/export/lint/lint.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/util/check.h"

namespace xylem {

const char* name_of(LintSeverity s) {
  return s == LintSeverity::error ? "error" : s == LintSeverity::warning ? "warning" : "info";
}

bool LintReport::has(LintSeverity at_least) const {
  return std::any_of(findings.begin(), findings.end(), [&](const LintFinding& f) { return f.severity >= at_least; });
}

std::string LintReport::text() const {
  std::string out;
  int64_t counts[3] = {};
  for (const LintFinding& f : findings) {
    ++counts[size_t(f.severity)];
    out += std::string(name_of(f.severity)) + " " + f.id + "  " + f.node + ": " + f.message + "\n";
  }
  char line[96];
  for (const auto& [name, value] : totals) {
    std::snprintf(line, sizeof line, "%-28s %.6g\n", name.c_str(), value);
    out += line;
  }
  out += target + ": " + std::to_string(counts[2]) + " errors, " + std::to_string(counts[1]) + " warnings, " +
         std::to_string(counts[0]) + " notes\n";
  return out;
}

std::string LintReport::json() const {
  nlohmann::ordered_json j;
  j["findings"] = nlohmann::ordered_json::array();
  for (const LintFinding& f : findings)
    j["findings"].push_back(
        {{"id", f.id}, {"severity", name_of(f.severity)}, {"node", f.node}, {"message", f.message}});
  j["totals"] = totals;
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

#ifndef XY_WITH_ONNX
LintReport lint_onnx(const std::string&, const std::string&, const LintOptions&) {
  XY_FAIL(
      "this build has no ONNX support; install libprotobuf-dev, protobuf-compiler and the pip package onnx, or run "
      "scripts/setup.sh, and build again");
}
#endif

}  // namespace xylem
