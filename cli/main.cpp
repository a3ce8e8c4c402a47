// SPDX-License-Identifier: Apache-2.0
// The `xylem` program.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/data.h"
#include "core/util/check.h"

namespace {

// Users get the sentence; a defect also says where it happened.
void print_error(const std::exception& e) {
  const auto* ours = dynamic_cast<const xylem::Error*>(&e);
  if (!ours || ours->message().starts_with("internal error"))
    std::fprintf(stderr, "xylem: error: %s\n", e.what());
  else
    std::fprintf(stderr, "xylem: error: %s%s%s\n", ours->op().c_str(), ours->op().empty() ? "" : ": ",
                 ours->message().c_str());
  if (dynamic_cast<const xylem::OutOfMemory*>(&e))
    std::fprintf(stderr,
                 "xylem: use a smaller train.micro_batch (gradients accumulate, the result stays the same), "
                 "train.precision = \"bf16\" or model.recompute = true\n");
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const xylem::cli::Exit& e) {
    return e.code;
  } catch (const std::exception& e) {
    print_error(e);
    return 1;
  }
  return 0;
}
