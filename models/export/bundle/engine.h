// SPDX-License-Identifier: Apache-2.0
// The script that builds a TensorRT engine on the machine that will run it.
#pragma once
#include <string>

#include "models/export/bundle/triton.h"
#include "models/export/runtime/target.h"

namespace xylem {

// A shell script around trtexec, with the flags of that version of TensorRT: precision flags until 10.11,
// --stronglyTyped until 10.16, none from 11 on.
std::string engine_script(const triton::Model& model, const lint::Target& target);

}  // namespace xylem
