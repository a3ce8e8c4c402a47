// SPDX-License-Identifier: Apache-2.0
// Whole files. Errors name the path and the system's reason.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace xylem {

std::string read_file(const std::string& path);
std::optional<std::string> read_file_if_any(const std::string& path);  // nothing where it cannot be read

// Writes the bytes aside and renames: whoever reads the file meanwhile, or after a failure, sees all of what it held
// before. Makes the folder. They are not forced onto the disk. Throws FileError (core/util/file_error.h).
void replace_file(const std::string& path, std::string_view bytes);
void replace_file(const std::string& path, std::initializer_list<std::string_view> parts);  // one after the other
bool try_replace_file(const std::string& path, std::string_view bytes) noexcept;            // whether it worked

}  // namespace xylem
