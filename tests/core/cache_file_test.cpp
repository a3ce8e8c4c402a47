// SPDX-License-Identifier: Apache-2.0
#include "core/util/cache_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support.h"

namespace xylem {
namespace {

using testing::HasSubstr;

class CacheFiles : public testing::Test {
 protected:
  CacheFiles() { ::setenv("XY_CACHE_DIR", (scratch_ / "cache").c_str(), 1); }
  ~CacheFiles() override { ::unsetenv("XY_CACHE_DIR"); }
  std::string file() const { return scratch_ / "cache/table"; }
  Scratch scratch_;
};

TEST_F(CacheFiles, FolderIsTheUsersChoice) {
  EXPECT_EQ(cache_folder(), scratch_ / "cache");
  ::unsetenv("XY_CACHE_DIR");
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(cache_folder(), "/somewhere/xylem");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_THAT(cache_folder().string(), testing::EndsWith(".cache/xylem"));
}

TEST_F(CacheFiles, OutlastTheObject) {
  {
    CacheFile table("table");
    EXPECT_FALSE(table.find("a 1"));
    EXPECT_EQ(table.keep("a 1", "first\tvalue"), "first\tvalue");
    EXPECT_EQ(table.keep("b", ""), "");
  }
  CacheFile again("table");
  EXPECT_EQ(again.find("a 1"), "first\tvalue");
  EXPECT_EQ(again.find("b"), "");
  EXPECT_FALSE(again.find("c"));
}

// Processes that find out the same thing at the same time agree on one answer.
TEST_F(CacheFiles, TheFirstOfTwoWritersCounts) {
  CacheFile one("table"), other("table");
  EXPECT_FALSE(other.find("key"));
  EXPECT_EQ(one.keep("key", "mine"), "mine");
  EXPECT_EQ(other.keep("key", "yours"), "mine");
  EXPECT_EQ(other.keep("more", "x"), "x");
  EXPECT_EQ(one.keep("again", "y"), "y");
  EXPECT_EQ(one.find("more"), "x");
}

TEST_F(CacheFiles, DamageIsToldAndIgnored) {
  CacheFile("table").keep("key", "value");
  std::string bytes = read_file(file());
  for (const std::string& bad :
       {bytes.substr(0, bytes.size() - 2), std::string("nonsense"), std::string("\0\n\n", 3)}) {
    write_file(file(), bad);
    testing::internal::CaptureStderr();
    CacheFile table("table");
    EXPECT_FALSE(table.find("key"));
    std::string told = testing::internal::GetCapturedStderr();  // once a process
    if (bad.size() == bytes.size() - 2) EXPECT_THAT(told, HasSubstr("is damaged"));
    EXPECT_EQ(table.keep("key", "new"), "new");
    EXPECT_EQ(CacheFile("table").find("key"), "new");
    std::filesystem::remove(file());
  }
}

TEST_F(CacheFiles, AFolderThatCannotBeMadeIsNoError) {
  write_file(scratch_ / "file", "");
  ::setenv("XY_CACHE_DIR", (scratch_ / "file").c_str(), 1);
  testing::internal::CaptureStderr();
  CacheFile table("table");
  EXPECT_EQ(table.keep("key", "value"), "value");
  EXPECT_EQ(table.find("key"), "value");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("XY_CACHE_DIR"));
}

}  // namespace
}  // namespace xylem
