// SPDX-License-Identifier: Apache-2.0
// `xylem data` as a user runs it: what it prints and how it fails. What it writes is tested in tests/data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace xylem {
namespace {

using testing::HasSubstr;

class DataCli : public testing::Test {
 protected:
  Outcome data(const std::string& arguments) const {
    return shell("cd " + dir.path() + " && " + program::path() + " data " + arguments);
  }
  Scratch dir;
};

TEST_F(DataCli, TextFromFilesAndStandardInput) {
  write_file(dir / "a.txt", "one\ntwo\nthree\nfour\n");
  Outcome made = data("text a.txt --out new --val-fraction 0.3");
  EXPECT_EQ(made.code, 0) << made.text;
  EXPECT_THAT(made.text, HasSubstr("new/train.tok: 14 tokens"));
  EXPECT_THAT(made.text, HasSubstr("new/val.tok: 5 tokens"));
  Outcome info = data("info new/val.tok");
  EXPECT_EQ(info.code, 0);
  EXPECT_THAT(info.text, HasSubstr("5 tokens of 1 byte, vocabulary 256\nstarts with: four"));
  Outcome piped = data("text - --out piped --val-fraction 0 < a.txt");
  EXPECT_EQ(piped.code, 0) << piped.text;
  EXPECT_EQ(read_file(dir / "piped/train.tok").substr(32), "one\ntwo\nthree\nfour\n");
}

TEST_F(DataCli, MistakesEndWithACodeAndASentence) {
  auto fails = [&](const std::string& arguments, const std::string& words) {
    Outcome o = data(arguments);
    EXPECT_NE(o.code, 0) << arguments;
    EXPECT_THAT(o.text, HasSubstr(words)) << arguments;
  };
  write_file(dir / "a.txt", "hello");
  fails("", "subcommand is required");
  fails("text none.txt --out o", "none.txt: No such file");
  fails("text a.txt", "--out is required");
  fails("text a.txt --out a.txt/o", "a.txt");
  fails("fashion-mnist --from nowhere --out o", "apt install dataset-fashion-mnist");
  fails("images nowhere --out o.h5", "no folder nowhere");
  fails("info a.txt", "a.txt is no token file");
}

}  // namespace
}  // namespace xylem
