// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle.h"

#include <algorithm>
#include <cstdio>

#include "core/util/check.h"

namespace xylem {

bool BundleReport::failed() const {
  return lint.has(LintSeverity::error) || !(checker.empty() || checker == "passed") ||
         std::any_of(checks.begin(), checks.end(), [](const BundleCheck& c) { return !c.passed; });
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
    std::snprintf(line, sizeof line, "  %-9s %-10s %-9s %-14s %s\n", "optimized", "worst", "limit", "over 1/2 LSB",
                  "shapes");
    out += line;
    for (const BundleCheck& c : checks) {
      std::snprintf(line, sizeof line, "  %-9s %-10.2e %-9.0e %-14.4f %s%s\n", c.optimized ? "yes" : "no", c.worst,
                    c.limit, c.over_half_lsb, c.shapes.c_str(), c.passed ? "" : "   TOO FAR");
      out += line;
    }
  }
  if (!unchecked.empty()) out += "\n";
  for (const std::string& what : unchecked) out += "NOT verified: " + what + "\n";
  out += failed() ? "\nNOT passed\n" : passed() ? "\npassed\n" : "\nNOT verified in full\n";
  return out;
}

#ifndef XY_WITH_ONNX
BundleReport export_bundle(Module&, const ExportForward&, const std::vector<ExportInput>&, const std::string&,
                           const BundleOptions&) {
  XY_FAIL(
      "this build has no ONNX support; install libprotobuf-dev, protobuf-compiler and the pip package onnx, or run "
      "scripts/setup.sh, and build again");
}
#endif

}  // namespace xylem
