// SPDX-License-Identifier: Apache-2.0
#include "core/util/check.h"

#include <string_view>
#include <utility>

namespace xylem {
namespace {

thread_local const char* op_name = "";

std::string compose(const std::string& message, const std::string& op, const std::source_location& where,
                    const std::string& hint) {
  std::string_view file = where.file_name();
  for (const char* root : {"/core/", "/ops/", "/models/", "/data/", "/distributed/", "/cli/"})
    if (size_t at = file.rfind(root); at != std::string_view::npos) file.remove_prefix(at + 1);
  std::string text = op.empty() ? message : op + ": " + message;
  if (!hint.empty()) text += " (" + hint + ")";
  return text + " [" + std::string(file) + ":" + std::to_string(where.line()) + "]";
}

}  // namespace

Error::Error(std::string message, std::string op, std::source_location where, std::string hint)
    : std::runtime_error(compose(message, op, where, hint)),
      message_(std::move(message)),
      op_(std::move(op)),
      where_(where) {}

const char* current_op() { return op_name; }

namespace detail {

const char* set_current_op(const char* name) { return std::exchange(op_name, name); }

void fail(std::string message, std::source_location where, const char* hint) {
  throw Error(std::move(message), current_op(), where, hint);
}

void fail_assert(const char* condition, std::string message, std::source_location where) {
  throw Error(concat("internal error: ", condition, message.empty() ? "" : ": ", message), current_op(), where,
              "this is a defect of Xylem, please report it");
}

}  // namespace detail
}  // namespace xylem
