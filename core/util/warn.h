// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace xylem {

// Writes "xylem: warning: <text>" to standard error, once a process for each text: for what goes on working, but slower
// or otherwise than asked for.
void warn_once(const std::string& text);

}  // namespace xylem
