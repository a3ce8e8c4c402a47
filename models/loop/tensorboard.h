// SPDX-License-Identifier: Apache-2.0
// Scalars in TensorBoard's event file format: length-prefixed protobuf records with masked CRC-32C checksums.
#pragma once
#include <cstdint>
#include <fstream>
#include <string>

namespace xylem {

class TensorBoard {
 public:
  // Opens a new event file in `folder`. Events of `first_step` and later from earlier files there are void (a resumed
  // run repeats those steps).
  explicit TensorBoard(const std::string& folder, int64_t first_step = 0);
  void scalar(const std::string& tag, double value, int64_t step);
  void flush();  // throws FileError where there is no room
  const std::string& path() const { return path_; }

 private:
  void write(const std::string& event);
  std::string path_;
  std::ofstream file_;
};

}  // namespace xylem
