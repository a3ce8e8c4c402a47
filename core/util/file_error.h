// SPDX-License-Identifier: Apache-2.0
// Errors of files that cannot be written, with the reason that the system gave.
#pragma once
#include <cerrno>
#include <exception>
#include <source_location>
#include <string>

#include "core/util/check.h"

namespace xylem {

class FileError : public Error {
 public:
  FileError(const std::string& message, int reason, std::source_location where = std::source_location::current());
  int reason() const { return reason_; }  // an errno

 private:
  int reason_;
};

// Throws "cannot write 'path': No space left on device".
[[noreturn]] void cannot_write(const std::string& path, int reason = errno,
                               std::source_location where = std::source_location::current());

int reason_of(const std::exception& e);  // an errno, of a FileError or std::system_error; 0 of others
// Whether trying again meets the same until somebody makes room or gives leave: the file system is full or read-only,
// a quota or limit is reached, or the folder belongs to others.
bool needs_room_or_leave(const std::exception& e);

}  // namespace xylem
