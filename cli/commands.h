// SPDX-License-Identifier: Apache-2.0
// The subcommands of `xylem`, each in the file of its name.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace xylem::cli {

void add_train_command(CLI::App& app);
void add_run_command(CLI::App& app, const std::vector<std::string>& mpirun_options);
void add_checkpoint_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_topo_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_lint_command(CLI::App& app);
void add_bench_command(CLI::App& app);

// Exit code of a job that saved a checkpoint because it was told to stop, and can go on (EX_TEMPFAIL).
constexpr int kStopped = 75;

std::string quoted(const std::string& word);  // for a shell

// Thrown by a command to end the program with a code of its own.
struct Exit {
  int code;
};

}  // namespace xylem::cli
