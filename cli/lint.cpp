// SPDX-License-Identifier: Apache-2.0
#include "models/export/lint/lint.h"

#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "core/util/check.h"

namespace xylem::cli {
namespace {

struct Arguments {
  std::string model, target = "trt10.9";
  std::vector<std::string> ranges;
  bool json = false, build = false;
};

void run(const Arguments& a) {
  LintOptions options;
  for (const auto& [symbol, r] : parse_ranges(a.ranges)) options.ranges[symbol] = {r.min, r.opt, r.max};
  options.build = a.build;
  LintReport report;
  try {
    report = lint_onnx(a.model, a.target, options);
  } catch (const Error& e) {  // 1 would say that there are warnings
    std::fprintf(stderr, "xylem: error: %s\n", e.message().c_str());
    throw Exit{2};
  }
  std::fputs((a.json ? report.json() + "\n" : report.text()).c_str(), stdout);
  if (report.has(LintSeverity::error)) throw Exit{2};
  if (report.has(LintSeverity::warning)) throw Exit{1};
}

}  // namespace

void add_lint_command(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd =
      app.add_subcommand("lint",
                         "Say what a runtime would refuse, compute wrongly or run slowly in an ONNX file.\n"
                         "Exit code 0: nothing, or notes; 1: warnings; 2: errors, or a file that cannot be read");
  cmd->add_option("MODEL", a->model, "any ONNX file")->required();
  cmd->add_option("--target", a->target, "trt8.4 to trt11.1, or ort-cpu")->capture_default_str();
  cmd->add_option("--range", a->ranges, "sizes of a dynamic dimension; may be repeated")
      ->type_name("NAME=MIN:OPT:MAX")
      ->allow_extra_args(false);
  cmd->add_flag("--build", a->build, "let the TensorRT of this machine read the file and build an engine, too");
  cmd->add_flag("--json", a->json, "print JSON");
  cmd->callback([a] { run(*a); });
}

}  // namespace xylem::cli
