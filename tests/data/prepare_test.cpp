// SPDX-License-Identifier: Apache-2.0
#include "data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/gzip.h"
#include "data/hdf5.h"
#include "data/idx.h"
#include "data/image.h"
#include "data/tokens.h"
#include "tests/support.h"

namespace xylem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string idx(std::vector<int> dims, const std::string& bytes, int type = 8) {
  std::string out{'\0', '\0', char(type), char(dims.size())};
  for (int d : dims) out += {char(d >> 24), char(d >> 16), char(d >> 8), char(d)};
  return out + bytes;
}
// A gzip member made of one stored block: needs no compressor.
std::string gzip(const std::string& bytes) {
  uint32_t crc = ~0u, n = uint32_t(bytes.size());
  for (unsigned char b : bytes) {
    crc ^= b;
    for (int k = 0; k < 8; ++k) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  crc = ~crc;
  auto le = [](uint32_t v, int count) {
    std::string s;
    for (int i = 0; i < count; ++i) s += char(v >> (8 * i));
    return s;
  };
  return std::string("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10) + '\x01' + le(n, 2) + le(~n, 2) + bytes + le(crc, 4) +
         le(n, 4);
}

class Prepare : public ::testing::Test {
 protected:
  Scratch dir;
};

TEST_F(Prepare, IdxFilesAreReadPackedAndPlain) {
  if (!built_with_zlib()) GTEST_SKIP() << "needs zlib";
  std::string file = idx({2, 3}, "abcdef");
  write_file(dir / "plain", file);
  write_file(dir / "packed.gz", gzip(file));
  for (std::string name : {"plain", "packed.gz"}) {
    Tensor t = read_idx(dir / name);
    EXPECT_EQ(t.shape(), (Shape{2, 3}));
    EXPECT_EQ(t.dtype(), u8);
    EXPECT_EQ(t.to_vector<uint8_t>(), (std::vector<uint8_t>{'a', 'b', 'c', 'd', 'e', 'f'}));
  }
}

TEST_F(Prepare, BadIdxFilesAreNamed) {
  if (!built_with_zlib()) GTEST_SKIP() << "needs zlib";
  auto error = [&](const std::string& name, const std::string& bytes) {
    write_file(dir / name, bytes);
    return error_of([&] { read_idx(dir / name); });
  };
  std::string good = idx({2, 3}, "abcdef"), packed = gzip(good);
  EXPECT_THAT(error("short", idx({2, 3}, "abcde")), AllOf(HasSubstr("short is truncated"), HasSubstr("[2, 3]")));
  EXPECT_THAT(error("long", good + "x"), HasSubstr("long is truncated or damaged"));
  EXPECT_THAT(error("header", good.substr(0, 9)), HasSubstr("inside its header"));
  EXPECT_THAT(error("floats", idx({1}, "abcd", 0x0D)), HasSubstr("element type 13"));
  EXPECT_THAT(error("text", "hello world"), HasSubstr("text is not an IDX file"));
  EXPECT_THAT(error("empty", ""), HasSubstr("empty is not an IDX file"));
  EXPECT_THAT(error("cut.gz", packed.substr(0, packed.size() - 12)), HasSubstr("cut.gz is corrupt or truncated"));
  std::string flipped = packed;
  flipped[20] ^= 1;
  EXPECT_THAT(error("flip.gz", flipped), HasSubstr("flip.gz is corrupt"));
  EXPECT_THAT(error_of([&] { read_idx(dir / "none.gz"); }), HasSubstr("none.gz: No such file"));
}

TEST_F(Prepare, MnistBecomesHdf5) {
  if (!built_with_zlib() || !built_with_hdf5()) GTEST_SKIP() << "needs zlib and HDF5";
  std::string pixels;
  for (int i = 0; i < 3 * 4; ++i) pixels += char(i * 20);
  write_file(dir / "in/train-images-idx3-ubyte.gz", gzip(idx({3, 2, 2}, pixels)));
  write_file(dir / "in/train-labels-idx1-ubyte", idx({3}, {1, 0, 1}));
  write_file(dir / "in/t10k-images-idx3-ubyte", idx({1, 2, 2}, pixels.substr(0, 4)));
  std::string message = error_of([&] { prepare_mnist(dir / "in", dir / "out", {"a", "b"}); });
  EXPECT_THAT(message, AllOf(HasSubstr("t10k-labels-idx1-ubyte"), HasSubstr("neither")));
  write_file(dir / "in/t10k-labels-idx1-ubyte.gz", gzip(idx({1}, {0})));

  prepare_mnist(dir / "in", dir / "out", {"a", "b"});
  auto train = hdf5_images(dir / "out/train.h5");
  EXPECT_EQ(train->size(), 3);
  EXPECT_EQ(train->spec().input, (Shape{1, 2, 2}));
  EXPECT_EQ(train->spec().class_names, (std::vector<std::string>{"a", "b"}));
  uint8_t image[4];
  int64_t label = -1;
  train->read(2, image, &label);
  EXPECT_EQ(label, 1);
  EXPECT_EQ(image[3], uint8_t(11 * 20));
  EXPECT_EQ(hdf5_images(dir / "out/test.h5")->size(), 1);
  EXPECT_THAT(describe_data(dir / "out/train.h5"), AllOf(HasSubstr("images: u8 [3, 1, 2, 2]"), HasSubstr("a, b")));

  EXPECT_THAT(error_of([&] { prepare_mnist(dir / "in", dir / "out", {"a"}); }), HasSubstr("label 1 of sample 0"));
  write_file(dir / "in/train-labels-idx1-ubyte", idx({2}, {1, 0}));
  EXPECT_THAT(error_of([&] {
                prepare_mnist(dir / "in", dir / "out", {"a", "b"});
              }),
              HasSubstr("do not belong together"));
}

TEST_F(Prepare, TextIsSplitAtALine) {
  write_file(dir / "a.txt", "first line\nsecond line\n");
  write_file(dir / "b.txt", "third line\nfourth line\nfifth\n");
  PreparedText made = prepare_text({dir / "a.txt", dir / "b.txt"}, dir / "new/out", 0.35);
  EXPECT_EQ(made.train_tokens, 34);
  EXPECT_EQ(made.val_tokens, 18);
  TokenFile train(dir / "new/out/train.tok"), val(dir / "new/out/val.tok");
  EXPECT_EQ(train.vocab(), 256);
  std::vector<int32_t> tokens(18);
  val.read(0, 18, tokens.data());
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "fourth line\nfifth\n");
  EXPECT_EQ(train.size(), 34);
  EXPECT_THAT(describe_data(dir / "new/out/train.tok"),
              AllOf(HasSubstr("34 tokens of 1 byte"), HasSubstr("first line")));

  made = prepare_text({dir / "a.txt"}, dir / "whole", 0);
  EXPECT_EQ(made.val_tokens, 0);
  EXPECT_FALSE(fs::exists(dir / "whole/val.tok"));
}

TEST_F(Prepare, BadTextIsNamed) {
  write_file(dir / "empty.txt", "");
  EXPECT_THAT(error_of([&] { prepare_text({dir / "none.txt"}, dir / "o"); }), HasSubstr("none.txt: No such file"));
  EXPECT_THAT(error_of([&] { prepare_text({dir / "empty.txt"}, dir / "o"); }), HasSubstr("empty.txt is empty"));
  EXPECT_THAT(error_of([&] { prepare_text({dir.path()}, dir / "o"); }), HasSubstr("is a folder"));
  EXPECT_THROW(prepare_text({dir / "empty.txt"}, dir / "o", 1.0), Error);
  EXPECT_FALSE(fs::exists(dir / "o"));
}

TEST_F(Prepare, TokenFilesKeepEveryWidth) {
  for (int64_t vocab : {200, 256, 257, 65536, 65537, 100000}) {
    std::vector<uint32_t> tokens{0, 1, uint32_t(vocab - 1), 5};
    write_tokens(dir / "t.tok", tokens, vocab);
    TokenFile file(dir / "t.tok");
    EXPECT_EQ(file.vocab(), vocab);
    EXPECT_EQ(file.bytes_per_token(), vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4);
    EXPECT_EQ(fs::file_size(dir / "t.tok"), size_t(32 + 4 * file.bytes_per_token()));
    std::vector<int32_t> back(3);
    file.read(1, 3, back.data());
    EXPECT_EQ(back, (std::vector<int32_t>{1, int32_t(vocab - 1), 5}));
    EXPECT_THROW(file.read(2, 3, back.data()), Error);
  }
  EXPECT_THROW(write_tokens(dir / "t.tok", std::vector<uint32_t>{7}, 7), Error);
}

TEST_F(Prepare, BadTokenFilesAreNamed) {
  write_tokens(dir / "t.tok", std::vector<uint32_t>{1, 2, 3, 299}, 300);
  std::string good = read_file(dir / "t.tok");
  auto error = [&](const std::string& bytes) {
    write_file(dir / "bad.tok", bytes);
    return error_of([&] {
      int32_t token;
      TokenFile(dir / "bad.tok").read(3, 1, &token);
    });
  };
  EXPECT_EQ(error(good), "no error");
  EXPECT_THAT(error(good.substr(0, good.size() - 3)),
              AllOf(HasSubstr("bad.tok is truncated"), HasSubstr("says 4 tokens of 2 bytes"), HasSubstr("holds 2")));
  EXPECT_THAT(error(good.substr(0, 20)), HasSubstr("not a token file"));
  EXPECT_THAT(error(""), HasSubstr("not a token file"));
  std::string changed = good;
  changed[8] = 2;
  EXPECT_THAT(error(changed), HasSubstr("version 2"));
  changed = good;
  changed[12] = 3;
  EXPECT_THAT(error(changed), HasSubstr("3 bytes"));
  changed = good;
  changed[39] = 9;  // the last token becomes 0x92b
  EXPECT_THAT(error(changed), AllOf(HasSubstr("bad.tok: token 2347"), HasSubstr("vocabulary of 300")));
  EXPECT_THAT(error_of([&] { TokenFile(dir / "none.tok"); }), HasSubstr("xylem data text"));
  EXPECT_THAT(error_of([&] { token_dataset(dir / "t.tok", 8); }), HasSubstr("too few"));
}

Image plain_image(int64_t height, int64_t width, uint8_t value) {
  return {height, width, 3, std::vector<uint8_t>(size_t(height * width * 3), value)};
}

TEST_F(Prepare, ImageFoldersBecomeHdf5) {
  if (!built_with_images() || !built_with_hdf5() || !built_with_zlib()) GTEST_SKIP() << "needs libjpeg, libpng, HDF5";
  for (int i = 0; i < 5; ++i) {
    for (auto [name, value] : {std::pair("cat", 10), {"dog", 20}, {"elk", 30}}) {
      std::string base = std::string("in/") + name + (i % 2 ? "/deep/" : "/") + std::to_string(i);
      fs::create_directories(fs::path(dir / base).parent_path());
      write_image((dir / base) + (i == 2 ? ".PNG.png" : ".jpg"), plain_image(40 + i, 50 - i, uint8_t(value)));
    }
  }
  fs::create_directories(dir / "in/empty");
  write_file(dir / "in/cat/notes.txt", "not an image");
  for (int deflate : {0, 3}) {
    int64_t last = 0;
    PreparedImages made = prepare_images(dir / "in", dir / "out/set.h5", {.size = 16, .deflate = deflate},
                                         [&](const std::string&, int64_t done, int64_t) { last = done; });
    EXPECT_EQ(made.images, 15);
    EXPECT_EQ(last, 15);
    EXPECT_EQ(made.classes, (std::vector<std::string>{"cat", "dog", "elk"}));
    auto set = hdf5_images(dir / "out/set.h5");
    EXPECT_EQ(set->spec().input, (Shape{3, 16, 16}));
    EXPECT_EQ(set->spec().class_names, made.classes);
    std::vector<uint8_t> image(3 * 16 * 16);
    std::vector<int64_t> counts(3), labels;
    for (int64_t i = 0; i < 15; ++i) {
      int64_t label = -1;
      set->read(i, image.data(), &label);
      ++counts.at(size_t(label));
      labels.push_back(label);
      for (uint8_t p : image) ASSERT_NEAR(p, 10 * (label + 1), 2);
    }
    EXPECT_EQ(counts, (std::vector<int64_t>{5, 5, 5}));
    EXPECT_FALSE(std::is_sorted(labels.begin(), labels.end())) << "classes should be mixed";
  }
}

TEST_F(Prepare, DamagedImagesAreNamedOrSkipped) {
  if (!built_with_images() || !built_with_hdf5()) GTEST_SKIP() << "needs libjpeg, libpng, HDF5";
  fs::create_directories(dir / "in/a");
  write_image(dir / "in/a/good.png", plain_image(20, 20, 9));
  write_file(dir / "in/a/bad.jpg", "\xff\xd8\xff garbage");
  EXPECT_THAT(error_of([&] { prepare_images(dir / "in", dir / "o.h5", {.size = 8}); }),
              AllOf(HasSubstr("bad.jpg"), HasSubstr("--skip-bad")));
  EXPECT_FALSE(fs::exists(dir / "o.h5"));
  EXPECT_FALSE(fs::exists(dir / "o.h5.tmp"));
  PreparedImages made = prepare_images(dir / "in", dir / "o.h5", {.size = 8, .skip_bad = true});
  EXPECT_EQ(made.images, 1);
  ASSERT_EQ(made.skipped.size(), 1u);
  EXPECT_THAT(made.skipped[0], HasSubstr("bad.jpg"));
  fs::remove(dir / "in/a/good.png");
  EXPECT_THROW(prepare_images(dir / "in", dir / "p.h5", {.size = 8, .skip_bad = true}), Error);
  EXPECT_THAT(error_of([&] { prepare_images(dir / "none", dir / "o.h5"); }), HasSubstr("no folder"));
  EXPECT_THAT(error_of([&] { prepare_images(dir / "in/a", dir / "o.h5"); }), HasSubstr("<class>"));
}

TEST_F(Prepare, UnknownFilesAreErrors) {
  write_file(dir / "what.bin", "something else");
  EXPECT_THAT(error_of([&] { describe_data(dir / "what.bin"); }), HasSubstr("what.bin is no token file"));
  EXPECT_THAT(error_of([&] { describe_data(dir / "none"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { describe_data(dir.path()); }), HasSubstr("folder"));
}

}  // namespace
}  // namespace xylem
