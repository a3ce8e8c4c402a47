// SPDX-License-Identifier: Apache-2.0
// `xylem data`: makes datasets, and says what they hold.
#pragma once
#include <CLI/CLI.hpp>

namespace xylem {

void add_data_command(CLI::App& app);

}  // namespace xylem
