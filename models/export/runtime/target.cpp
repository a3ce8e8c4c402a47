// SPDX-License-Identifier: Apache-2.0
#include "models/export/runtime/target.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

#include "core/util/check.h"
#include "models/export/runtime/trt_ops.inc"  // kTrtOps: trt_ops.tsv as text, made by the build

namespace xylem::lint {
namespace {

// The newest opset and IR version that a release of TensorRT reads (onnx-tensorrt's changelog), ascending. Between
// 10.2 and 10.8 no table was published: 20 is what its predecessor states.
struct Reads {
  Version from;
  int opset, ir;
};
constexpr Reads kReads[] = {{{8, 4}, 17, 8},   {{9, 0}, 19, 9},    {{10, 0}, 20, 10},
                            {{10, 9}, 22, 10}, {{10, 14}, 23, 11}, {{10, 15}, 24, 13}};
constexpr Version kNewest[] = {{8, 6}, {9, 3}, {10, 16}, {11, 1}};

struct Row {
  std::map<Version, char> states;
  std::string since, restriction;
};

// "10" or "10.9", and nothing else.
std::optional<Version> find_version(const std::string& text) {
  Version v;
  const char *end = text.data() + text.size(), *at = text.data();
  auto number = [&](int& into) {
    const auto [next, error] = std::from_chars(at, end, into);
    at = next;
    return error == std::errc() && into >= 0;
  };
  if (!number(v.major)) return {};
  if (at == end) return v;
  if (*at++ != '.' || !number(v.minor) || at != end) return {};
  return v;
}
Version parse_version(const std::string& text) {
  const std::optional<Version> v = find_version(text);
  XY_ASSERT(v, "trt_ops.tsv: '", text, "' is no version");
  return *v;
}

std::vector<std::string> columns(const std::string& line) {
  std::vector<std::string> out(1);
  for (char c : line) {
    if (c == '\t')
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

std::map<std::string, Row> read_table() {
  std::map<std::string, Row> table;
  std::vector<std::string> head;
  std::istringstream lines(kTrtOps);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> cells = columns(line);
    if (head.empty()) {
      head = cells;
      continue;
    }
    XY_ASSERT(cells.size() == head.size(), "trt_ops.tsv: '", line, "' has ", cells.size(), " columns");
    Row& row = table[cells[0]];
    for (size_t i = 1; i < head.size(); ++i) {
      if (head[i] == "since")
        row.since = cells[i].starts_with("<=") ? cells[i].substr(2) : cells[i];
      else if (head[i] == "restriction")
        row.restriction = cells[i];
      else
        row.states[parse_version(head[i].substr(1))] = cells[i][0];
    }
  }
  return table;
}

}  // namespace

Target parse_target(const std::string& name) {
  if (name == "ort-cpu") return {.name = name, .tensorrt = false, .version = {}, .max_opset = 26, .max_ir = 13};
  const std::string number = name.starts_with("trt") ? name.substr(3) : "";
  const std::optional<Version> given = find_version(number);
  XY_CHECK(given, "unknown target '", name,
           "'; known are ort-cpu and trt8.4 to trt11.1, such as trt8.6, trt10.9 or trt11.0");
  Version version = *given;
  bool has_minor = number.find('.') != std::string::npos;
  for (Version newest : kNewest)
    if (!has_minor && newest.major == version.major) version = newest;
  XY_CHECK(version >= kReads[0].from && version.major <= 11, "unknown target '", name,
           "': TensorRT versions from 8.4 to 11 are known");
  Target target{.name = "trt" + version.str(), .tensorrt = true, .version = version, .max_opset = 0, .max_ir = 0};
  for (const Reads& r : kReads)
    if (r.from <= version) target.max_opset = r.opset, target.max_ir = r.ir;
  return target;
}

OpSupport tensorrt_support(const std::string& op, Version version) {
  static const std::map<std::string, Row> table = read_table();
  auto it = table.find(op);
  if (it == table.end()) return {};
  const Row& row = it->second;
  OpSupport out{.listed = true, .since = row.since, .restriction = row.restriction};
  out.supported = !row.since.empty() && parse_version(row.since) <= version;
  return out;
}

bool tensorrt_always_has(const std::string& op, int major, int opset) {
  for (const Reads& r : kReads) {
    if (r.opset < opset) continue;
    const Version first = std::max(r.from, Version{.major = major});
    return first.major == major && tensorrt_support(op, first).supported;
  }
  return false;
}

}  // namespace xylem::lint
