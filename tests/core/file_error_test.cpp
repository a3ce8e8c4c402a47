// SPDX-License-Identifier: Apache-2.0
#include "core/util/file_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <system_error>

#include "core/util/git_lfs.h"
#include "tests/support.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(FileErrors, AFileIsReplacedOrStaysAsItWas) {
  Scratch dir;
  const std::string path = dir / "a.txt";
  replace_file(path, "one");
  replace_file(path, "two");
  EXPECT_EQ(read_file(path), "two");
  fs::create_directory(dir / "folder");
  EXPECT_THAT(error_of([&] { replace_file(dir / "folder", "three"); }),
              AllOf(HasSubstr("cannot write '" + (dir / "folder")), HasSubstr("Is a directory")));
  EXPECT_THROW(replace_file(dir / "a.txt/b.txt", "x"), FileError);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2) << "something was left behind";
}

TEST(FileErrors, TellsWhatComesAgainFromWhatMayNot) {
  for (int lasting : {ENOSPC, EDQUOT, EROFS, EACCES}) {
    EXPECT_TRUE(needs_room_or_leave(FileError("cannot write", lasting)));
    EXPECT_TRUE(needs_room_or_leave(std::system_error(lasting, std::generic_category())));
  }
  EXPECT_TRUE(needs_room_or_leave(fs::filesystem_error("x", std::make_error_code(std::errc::no_space_on_device))));
  EXPECT_FALSE(needs_room_or_leave(FileError("cannot write", EIO)));
  EXPECT_FALSE(needs_room_or_leave(std::runtime_error("No space left on device")));
  EXPECT_EQ(reason_of(FileError("cannot write", EIO)), EIO);
}

TEST(GitLfs, APointerIsNamedForWhatItIs) {
  Scratch dir;
  write_file(dir / "pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n");
  write_file(dir / "text", "version 2");
  EXPECT_TRUE(is_git_lfs_pointer(dir / "pointer"));
  EXPECT_FALSE(is_git_lfs_pointer(dir / "text"));
  EXPECT_FALSE(is_git_lfs_pointer(dir / "absent"));
  EXPECT_THAT(error_of([&] { refuse_git_lfs_pointer(dir / "pointer"); }),
              AllOf(HasSubstr(dir / "pointer"), HasSubstr("Git LFS pointer"), HasSubstr("git lfs pull")));
}

}  // namespace
}  // namespace xylem
