// SPDX-License-Identifier: Apache-2.0
// Options of a model or an optimizer, as a configuration file gives them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace xylem {

using OptionValue = std::variant<int64_t, double, bool, std::string>;
using OptionValues = std::map<std::string, OptionValue>;

// The fields of a configuration struct by name: assigns them from OptionValues and describes them.
class OptionTable {
 public:
  void operator()(const char* name, int64_t& field, const char* help) { rows_.push_back({name, &field, help}); }
  void operator()(const char* name, double& field, const char* help) { rows_.push_back({name, &field, help}); }
  void operator()(const char* name, bool& field, const char* help) { rows_.push_back({name, &field, help}); }
  void operator()(const char* name, std::string& field, const char* help) { rows_.push_back({name, &field, help}); }

  // Throws naming an unknown option and the nearest known one, or an option of the wrong type. Integers serve as
  // numbers.
  void assign(const std::string& owner, const OptionValues& options) const;  // owner: "the model 'gpt2'"
  OptionValues values() const;
  std::string help() const;  // one line per option: name = default  # what it is

 private:
  struct Row {
    std::string name;
    std::variant<int64_t*, double*, bool*, std::string*> field;
    const char* help;
  };
  std::vector<Row> rows_;
};

std::string show(const OptionValue& value);  // as a configuration file has it

size_t edit_distance(const std::string& a, const std::string& b);  // Levenshtein's
// The candidate that takes the fewest edits to reach from `name`, or "" without candidates.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace xylem
