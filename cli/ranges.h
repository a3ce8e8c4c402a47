// SPDX-License-Identifier: Apache-2.0
// Sizes of dynamic dimensions on the command line: batch=1:8:64.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "models/export/export.h"

namespace xylem::cli {

// Throws Error naming what is not NAME=MIN:OPT:MAX.
std::map<std::string, DimRange> parse_ranges(const std::vector<std::string>& texts);

}  // namespace xylem::cli
