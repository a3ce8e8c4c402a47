// SPDX-License-Identifier: Apache-2.0
// Quantities as people read them.
#pragma once
#include <string>

namespace xylem {

std::string human_count(double v);       // 12.3k
std::string human_bytes(double v);       // 1.5 KiB, 64 MiB: three digits
std::string human_time(double seconds);  // 1:02:03

}  // namespace xylem
