// SPDX-License-Identifier: Apache-2.0
// The `xylem` program.
#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/data.h"
#include "core/util/check.h"
#include "distributed/launch/run.h"

namespace {

// Users get the sentence; a defect also says where it happened.
std::string describe(const std::exception& e) {
  const auto* ours = dynamic_cast<const xylem::Error*>(&e);
  std::string text = e.what();
  if (ours && !ours->message().starts_with("internal error"))
    text = ours->op() + (ours->op().empty() ? "" : ": ") + ours->message();
  if (dynamic_cast<const xylem::OutOfMemory*>(&e))
    text +=
        "\nuse a smaller train.micro_batch (gradients accumulate, the result stays the same), "
        "train.precision = \"bf16\" or model.recompute = true";
  return text;
}

// `xylem run` is called like mpirun: -np N, which CLI11 would read as -n p, and -- before the options of mpirun, which
// are taken off and returned.
std::vector<std::string> split_run_arguments(int& argc, char** argv) {
  char** end = std::find_if(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; });
  std::vector<std::string> rest(std::min(end + 1, argv + argc), argv + argc);
  argc = int(end - argv);
  static char ranks[] = "--np";
  for (char** word = argv; word < end; ++word)
    if (std::string_view(*word) == "-np") *word = ranks;
  return rest;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Xylem trains neural networks on CPUs and GPUs.", "xylem"};
  app.set_version_flag("--version", "xylem " XY_VERSION);
  app.require_subcommand(1);
  std::vector<std::string> mpirun_options;
  if (argc > 1 && std::string_view(argv[1]) == "run") mpirun_options = split_run_arguments(argc, argv);
  xylem::cli::add_train_command(app);
  xylem::cli::add_run_command(app, mpirun_options);
  xylem::cli::add_checkpoint_command(app);
  xylem::cli::add_generate_command(app);
  xylem::add_data_command(app);
  xylem::cli::add_doctor_command(app);
  xylem::cli::add_plan_command(app);
  xylem::cli::add_topo_command(app);
  xylem::cli::add_export_command(app);
  xylem::cli::add_lint_command(app);
  xylem::cli::add_bench_command(app);
  int code = 0;
  int failed = xylem::guarded_main(
      [&] {
        try {
          app.parse(argc, argv);
        } catch (const CLI::ParseError& e) {
          code = app.exit(e);
        } catch (const xylem::cli::Exit& e) {
          code = e.code;
        }
      },
      describe);
  return failed ? failed : code;
}
