// SPDX-License-Identifier: Apache-2.0
#include "core/util/file_error.h"

#include <cstring>
#include <system_error>

namespace xylem {

FileError::FileError(const std::string& message, int reason, std::source_location where)
    : Error(message, current_op(), where), reason_(reason) {}

void cannot_write(const std::string& path, int reason, std::source_location where) {
  throw FileError(detail::concat("cannot write '", path, "': ", std::strerror(reason)), reason, where);
}

int reason_of(const std::exception& e) {
  if (const auto* ours = dynamic_cast<const FileError*>(&e)) return ours->reason();
  if (const auto* systems = dynamic_cast<const std::system_error*>(&e)) return systems->code().value();
  return 0;
}

bool needs_room_or_leave(const std::exception& e) {
  const int reason = reason_of(e);
  for (int lasting : {ENOSPC, EDQUOT, EFBIG, EROFS, EACCES, EPERM})
    if (reason == lasting) return true;
  return false;
}

}  // namespace xylem
