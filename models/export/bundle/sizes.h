// SPDX-License-Identifier: Apache-2.0
// The sizes at which an exported model is tried, and inputs of these sizes.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "models/export/export.h"

namespace xylem {

using Sizes = std::map<std::string, int64_t>;  // by symbol

// Ranges for every symbol of the inputs: those given, or else 1 to four times the example's size.
std::map<std::string, DimRange> complete_ranges(const std::vector<ExportInput>& inputs,
                                                const std::map<std::string, DimRange>& given);
// The smallest, middle and largest sizes, and odd ones in between; without repetition.
std::vector<Sizes> checked_sizes(const std::vector<ExportInput>& inputs, const std::map<std::string, DimRange>& ranges);
// Values drawn from those of the examples: what they are made of (tokens, masks, pixels) stays.
Tensors random_inputs(const std::vector<ExportInput>& inputs, const Sizes& sizes, uint64_t seed);

}  // namespace xylem
