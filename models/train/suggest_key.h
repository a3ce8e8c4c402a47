// SPDX-License-Identifier: Apache-2.0
// What somebody meant who wrote a key of the configuration that there is not. Internal to models/train.
#pragma once
#include <string>
#include <vector>

namespace xylem {

// The key that other trainers call so, the one of that name in another section, or one that is spelt nearly like it;
// "" if none is near.
std::string suggest_key(const std::string& given, const std::vector<std::string>& keys);

}  // namespace xylem
