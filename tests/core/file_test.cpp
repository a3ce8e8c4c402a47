// SPDX-License-Identifier: Apache-2.0
#include "core/util/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support.h"

namespace xylem {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(File, ComesBackAsItWasWritten) {
  Scratch scratch;
  const std::string path = scratch / "new folder/bytes", bytes("\0\xff\r\n a", 6);
  replace_file(path, "before");
  replace_file(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch / "new folder"), {}),
            1);  // nothing is left aside
}

TEST(File, ErrorsNameThePathAndTheReason) {
  Scratch scratch;
  EXPECT_THAT(error_of([&] { read_file(scratch / "none"); }), AllOf(HasSubstr("none"), HasSubstr("No such file")));
  EXPECT_THAT(error_of([&] { read_file(scratch.path()); }), HasSubstr("Is a directory"));
  EXPECT_FALSE(read_file_if_any(scratch / "none"));
  EXPECT_EQ(read_file_if_any("/dev/null"), "");
}

TEST(File, AFailureLeavesWhatWasThere) {
  Scratch scratch;
  std::filesystem::create_directories(scratch / "target/inside");
  EXPECT_THAT(error_of([&] { replace_file(scratch / "target", "x"); }), HasSubstr("cannot write"));
  EXPECT_FALSE(try_replace_file(scratch / "target", "x"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "target/inside"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

}  // namespace
}  // namespace xylem
