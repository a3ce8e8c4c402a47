// SPDX-License-Identifier: Apache-2.0
#include "core/util/options.h"

#include <algorithm>
#include <sstream>
#include <type_traits>

#include "core/util/check.h"

namespace xylem {
namespace {

template <class T>
constexpr const char* kTypeName = std::is_same_v<T, int64_t>  ? "an integer"
                                  : std::is_same_v<T, double> ? "a number"
                                  : std::is_same_v<T, bool>   ? "true or false"
                                                              : "text";

}  // namespace

std::string show(const OptionValue& value) {
  std::ostringstream out;
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>)
          out << (v ? "true" : "false");
        else if constexpr (std::is_same_v<T, std::string>)
          out << '"' << v << '"';
        else
          out << v;
      },
      value);
  return out.str();
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  auto best = std::min_element(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  return best == candidates.end() ? "" : *best;
}

void OptionTable::assign(const std::string& owner, const OptionValues& options) const {
  for (const auto& option : options) {
    const std::string& name = option.first;
    const OptionValue& value = option.second;
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.name == name; });
    if (row == rows_.end()) {
      std::vector<std::string> names;
      for (const Row& r : rows_) names.push_back(r.name);
      XY_CHECK(!names.empty(), owner, " has no options, and '", name, "' was given");
      XY_FAIL(owner, " has no option '", name, "'; the nearest is '", nearest_name(name, names), "'");
    }
    std::visit(
        [&](auto* field) {
          using T = std::remove_pointer_t<decltype(field)>;
          if (auto* same = std::get_if<T>(&value)) {
            *field = *same;
            return;
          }
          if constexpr (std::is_same_v<T, double>)
            if (auto* integer = std::get_if<int64_t>(&value)) {
              *field = double(*integer);
              return;
            }
          XY_FAIL("the option '", name, "' of ", owner, " needs ", kTypeName<T>, " but got ", show(value));
        },
        row->field);
  }
}

OptionValues OptionTable::values() const {
  OptionValues all;
  for (const Row& r : rows_) all[r.name] = std::visit([](auto* field) { return OptionValue(*field); }, r.field);
  return all;
}

std::string OptionTable::help() const {
  std::vector<std::string> lines;
  size_t width = 0;
  for (const Row& r : rows_) {
    OptionValue value = std::visit([](auto* field) { return OptionValue(*field); }, r.field);
    lines.push_back(r.name + " = " + show(value));
    width = std::max(width, lines.back().size());
  }
  std::string text;
  for (size_t i = 0; i < rows_.size(); ++i)
    text += lines[i] + std::string(width + 2 - lines[i].size(), ' ') + "# " + rows_[i].help + "\n";
  return text;
}

}  // namespace xylem
