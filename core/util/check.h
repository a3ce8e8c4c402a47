// SPDX-License-Identifier: Apache-2.0
// Errors. XY_CHECK reports a user's mistake, XY_ASSERT a defect of Xylem; both throw xylem::Error.
#pragma once
#include <cstdint>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace xylem {

// Every exception Xylem throws. what() holds the whole story; the fields hold its parts.
class Error : public std::runtime_error {
 public:
  Error(std::string message, std::string op, std::source_location where, std::string hint = {});
  const std::string& message() const { return message_; }  // the sentence alone
  const std::string& op() const { return op_; }            // the operation that was running, or ""
  const std::source_location& where() const { return where_; }

 private:
  std::string message_, op_;
  std::source_location where_;
};

// Device memory ran out; what() lists the largest live tensors and the operations that made them.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

namespace detail {
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
[[noreturn]] void fail(std::string message, std::source_location where, const char* hint = "");
[[noreturn]] void fail_assert(const char* condition, std::string message, std::source_location where);
const char* set_current_op(const char* name);  // returns the previous; OpScope alone calls it
}  // namespace detail

// Name of the operation that runs on this thread ("gelu", "gelu.backward"), or "".
const char* current_op();

}  // namespace xylem

#define XY_FAIL(...) ::xylem::detail::fail(::xylem::detail::concat(__VA_ARGS__), std::source_location::current())
#define XY_CHECK(condition, ...)            \
  do {                                      \
    if (!(condition)) XY_FAIL(__VA_ARGS__); \
  } while (0)
#define XY_ASSERT(condition, ...)                                                                      \
  do {                                                                                                 \
    if (!(condition))                                                                                  \
      ::xylem::detail::fail_assert(#condition, ::xylem::detail::concat("" __VA_OPT__(, ) __VA_ARGS__), \
                                   std::source_location::current());                                   \
  } while (0)
