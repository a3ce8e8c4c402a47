// SPDX-License-Identifier: Apache-2.0
// The subcommands of `xylem`, each in the file of its name.
#pragma once
#include <CLI/CLI.hpp>

namespace xylem::cli {

void add_train_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_doctor_command(CLI::App& app);

// Thrown by a command to end the program with a code of its own.
struct Exit {
  int code;
};

}  // namespace xylem::cli
