// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace xylem::cli {

// The value of `option` in GB/s: "400Gb/s", "400 Gbit/s", "400Gbps" (bits) or "50GB/s" (bytes), with M, G or T. A
// number without a unit is an error, since NICs are sold by the bit and measured by the byte.
double gigabytes_per_second(const std::string& option, const std::string& value);

}  // namespace xylem::cli
