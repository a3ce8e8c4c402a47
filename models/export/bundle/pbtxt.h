// SPDX-License-Identifier: Apache-2.0
// Protobuf's text format, as far as Triton's config.pbtxt uses it.
#pragma once
#include <string>
#include <vector>

namespace xylem::pbtxt {

// One field: `name: value`, or `name { fields }`. Lists are fields of the same name.
struct Field {
  std::string name, value;  // value without quotes; "" for a message
  bool quoted = false, message = false;
  std::vector<Field> fields = {};
  int line = 0;
};
// Throws Error naming the line and what was expected.
std::vector<Field> parse(const std::string& text);

const Field* find(const std::vector<Field>& fields, const std::string& name);
std::vector<const Field*> find_all(const std::vector<Field>& fields, const std::string& name);

}  // namespace xylem::pbtxt
