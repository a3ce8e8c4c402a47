// SPDX-License-Identifier: Apache-2.0
#include "data/hdf5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "data/gzip.h"
#include "data/loader.h"
#include "tests/support.h"

namespace xylem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Hdf5 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_hdf5() || !built_with_zlib()) GTEST_SKIP() << "needs HDF5 and zlib";
  }
};
using Hdf5Images = Hdf5;
using Hdf5Arrays = Hdf5;

// Rows of a pattern that compresses, and that differs in every element.
template <class T>
std::vector<T> pattern(int64_t n) {
  std::vector<T> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = T(i / 3 + i * i % 7);
  return v;
}

std::vector<uint8_t> all_rows(const Hdf5Array& array) {
  std::vector<uint8_t> bytes(size_t(array.rows()) * array.row_bytes());
  for (int64_t r = 0; r < array.rows(); ++r) array.read_row(r, bytes.data() + size_t(r) * array.row_bytes());
  return bytes;
}
template <class T>
std::vector<uint8_t> as_bytes(const std::vector<T>& v) {
  auto* p = reinterpret_cast<const uint8_t*>(v.data());
  return {p, p + v.size() * sizeof(T)};
}

TEST_F(Hdf5, RowsComeBackFromEveryStorage) {
  Scratch dir;
  auto bytes = pattern<uint8_t>(103 * 60);
  auto floats = pattern<float>(103 * 6);
  auto ints = pattern<int64_t>(103);
  Hdf5Writer w(dir / "a.h5");
  for (int deflate : {0, 1, 9}) {
    std::string n = std::to_string(deflate);
    w.create("bytes" + n, {3, 4, 5}, u8, {10}, deflate);
    w.create("floats" + n, {6}, f32, {7}, deflate);
    w.create("ints" + n, {}, i64, {50}, deflate);
    w.create("parts" + n, {3, 4, 5}, u8, {10, 2, 3, 5}, deflate);
    w.append("parts" + n, bytes.data(), 103);
    w.append("bytes" + n, bytes.data(), 33);  // in pieces that do not fit the chunks
    w.append("bytes" + n, bytes.data() + 33 * 60, 70);
    w.append("floats" + n, floats.data(), 103);
    w.append("ints" + n, ints.data(), 103);
  }
  w.set_strings("ints0", "names", {"one", "", "drei"});
  w.finish();

  Hdf5File file(dir / "a.h5");
  EXPECT_EQ(file.datasets().size(), 12u);
  for (const char* n : {"0", "1", "9"}) {
    Hdf5Array b = file.array(std::string("bytes") + n), f = file.array(std::string("floats") + n);
    EXPECT_TRUE(b.direct());
    EXPECT_TRUE(f.direct());
    EXPECT_EQ(b.info().shape, (Shape{103, 3, 4, 5}));
    EXPECT_EQ(b.info().chunk, (Shape{10, 3, 4, 5}));
    EXPECT_EQ(all_rows(b), bytes) << n;
    EXPECT_EQ(all_rows(file.array(std::string("parts") + n)), bytes) << n;
    EXPECT_EQ(all_rows(f), as_bytes(floats)) << n;
    EXPECT_EQ(all_rows(file.array(std::string("ints") + n)), as_bytes(ints)) << n;
    EXPECT_EQ(file.integers(std::string("ints") + n), ints);
  }
  EXPECT_EQ(file.array("floats1").info().filters, "shuffle, deflate 1");
  EXPECT_EQ(file.strings("ints0", "names"), (std::vector<std::string>{"one", "", "drei"}));
  EXPECT_TRUE(file.strings("ints0", "no such").empty());
}

// Where a file of one dataset has the dataset's object header: in the entry of its group's symbol table.
size_t object_header(const std::string& file) {
  uint64_t address = 0;
  size_t node = file.find("SNOD");
  std::memcpy(&address, file.data() + node + 16, sizeof address);
  return size_t(address);
}

TEST_F(Hdf5, ADatasetThatTheLibraryCannotOpenIsThereAllTheSame) {
  Scratch dir;
  Hdf5Writer w(dir / "a.h5");
  w.create("images", {4}, u8, {10});
  w.finish();
  std::string bytes = read_file(dir / "a.h5");
  ASSERT_EQ(bytes[object_header(bytes)], 1) << "the version of the header";
  bytes[object_header(bytes)] = 9;  // of an HDF5 to come
  write_file(dir / "b.h5", bytes);
  EXPECT_THAT(error_of([&] { Hdf5File(dir / "b.h5").array("images"); }),
              AllOf(HasSubstr("cannot open 'images' (HDF5 "), HasSubstr("version"), Not(HasSubstr("has no dataset"))));
  EXPECT_THAT(error_of([&] { Hdf5File(dir / "b.h5").array("labels"); }),
              AllOf(HasSubstr("has no dataset 'labels'"), HasSubstr("images")));
}

TEST_F(Hdf5, AFilterThatIsNotThereIsNamedAtOpening) {
  Scratch dir;
  Hdf5Writer w(dir / "a.h5");
  w.create("images", {4}, u8, {10}, 1);
  w.append("images", pattern<uint8_t>(40).data(), 10);
  w.finish();
  std::string bytes = read_file(dir / "a.h5");
  size_t name = bytes.find("deflate");
  ASSERT_NE(name, std::string::npos);
  const uint16_t lzf = 32000;
  std::memcpy(bytes.data() + name - 8, &lzf, sizeof lzf);  // before it: number, length of the name, flags, values
  std::memcpy(bytes.data() + name, "lzf\0\0\0\0", 7);
  write_file(dir / "b.h5", bytes);
  Hdf5File file(dir / "b.h5");
  EXPECT_THAT(file.datasets().at(0).filters, HasSubstr("lzf"));
  EXPECT_THAT(error_of([&] { file.array("images"); }),
              AllOf(HasSubstr("'images' is packed by the filter lzf (number 32000)"), HasSubstr("HDF5_PLUGIN_PATH")));
  write_file(dir / "c.h5", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(error_of([&] { Hdf5File(dir / "c.h5"); }), HasSubstr("Git LFS pointer"));
}

// x: 400 rows of 32 bytes, packed in 20 chunks.
std::vector<uint8_t> write_packed_rows(const std::string& path) {
  auto bytes = pattern<uint8_t>(400 * 32);
  Hdf5Writer w(path);
  w.create("x", {32}, u8, {20}, 3);
  w.append("x", bytes.data(), 400);
  w.finish();
  return bytes;
}

TEST_F(Hdf5, ChunksAreUnpackedOnceForAllThreads) {
  Scratch dir;
  auto bytes = write_packed_rows(dir / "a.h5");
  Hdf5Array x = Hdf5File(dir / "a.h5").array("x");
  std::vector<std::vector<uint8_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& r : results) threads.emplace_back([&] { r = all_rows(x); });
  for (auto& t : threads) t.join();
  for (auto& r : results) EXPECT_EQ(r, bytes);
  EXPECT_EQ(x.chunks_unpacked(), 20);
}

TEST_F(Hdf5, ASmallCacheStillReadsRight) {
  Scratch dir;
  auto bytes = write_packed_rows(dir / "a.h5");
  Hdf5Array x = Hdf5File(dir / "a.h5").array("x", 0);
  EXPECT_EQ(all_rows(x), bytes);
  EXPECT_EQ(x.chunks_unpacked(), 20);
  uint8_t row[32];
  x.read_row(0, row);
  EXPECT_EQ(x.chunks_unpacked(), 21) << "evicted chunks are unpacked again";
}

TEST_F(Hdf5, ErrorsNameWhatIsWrong) {
  Scratch dir;
  EXPECT_THAT(error_of([&] { Hdf5File(dir / "none.h5"); }), HasSubstr("none.h5: No such file"));
  write_file(dir / "text.h5", "this is not HDF5");
  EXPECT_THAT(error_of([&] { Hdf5File(dir / "text.h5"); }), HasSubstr("text.h5 is not an HDF5 file"));

  std::vector<uint8_t> zeros(4 * 100000);
  Hdf5Writer w(dir / "a.h5");
  w.create("pictures", {100000}, u8, {1});
  w.append("pictures", zeros.data(), 4);
  w.finish();
  std::string message = error_of([&] { Hdf5File(dir / "a.h5").array("images"); });
  EXPECT_THAT(message, HasSubstr("no dataset 'images'"));
  EXPECT_THAT(message, HasSubstr("pictures u8 [4, 100000]"));
  EXPECT_THAT(error_of([&] { hdf5_images(dir / "a.h5"); }), HasSubstr("pictures"));
  uint8_t row[1];
  EXPECT_THAT(error_of([&] { Hdf5File(dir / "a.h5").array("pictures").read_row(4, row); }), HasSubstr("row 4"));

  std::string whole = read_file(dir / "a.h5");
  write_file(dir / "cut.h5", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(error_of([&] { hdf5_images(dir / "cut.h5"); }), HasSubstr("truncated"));
}

TEST_F(Hdf5, ACorruptChunkIsAnErrorThatNamesTheSample) {
  Scratch dir;
  auto bytes = pattern<uint8_t>(8 * 1024);
  Hdf5Writer w(dir / "a.h5");
  w.create("images", {1, 32, 32}, u8, {1}, 6);
  w.append("images", bytes.data(), 8);
  w.create("labels", {}, i64, {8});
  std::vector<int64_t> labels(8);
  w.append("labels", labels.data(), 8);
  w.finish();
  std::string file = read_file(dir / "a.h5");
  // Every deflate stream starts with the same two bytes; spoil the body of each.
  for (size_t at = file.find("\x78\x9c"); at != std::string::npos; at = file.find("\x78\x9c", at + 2))
    file[at + 9] ^= 0x55;
  write_file(dir / "bad.h5", file);
  Loader loader(hdf5_images(dir / "bad.h5"), {.sampler = {.batch = 8, .shuffle = false}, .threads = 2});
  EXPECT_THAT(error_of([&] { loader.next(); }), ::testing::AllOf(HasSubstr("sample "), HasSubstr("corrupt")));
}

TEST_F(Hdf5, AnUnfinishedFileDoesNotAppear) {
  Scratch dir;
  {
    Hdf5Writer w(dir / "a.h5");
    w.create("x", {2}, u8, {1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THROW(Hdf5Writer(dir / "no/such/folder/a.h5"), Error);
}

void write_images(const std::string& path, const Shape& row, const std::vector<int64_t>& labels,
                  const std::string& layout, const std::vector<std::string>& names) {
  int64_t n = int64_t(labels.size());
  auto pixels = pattern<uint8_t>(n * row.numel());
  Hdf5Writer w(path);
  w.create("images", row, u8, {4}, 1);
  w.append("images", pixels.data(), n);
  if (!layout.empty()) w.set_strings("images", "layout", {layout});
  w.create("labels", {}, i64, {4});
  w.append("labels", labels.data(), n);
  if (!names.empty()) w.set_strings("labels", "class_names", names);
  w.finish();
}

TEST_F(Hdf5Images, BothLayoutsGiveChannelsFirst) {
  Scratch dir;
  auto pixels = pattern<uint8_t>(2 * 5 * 6 * 3);
  write_images(dir / "last.h5", {5, 6, 3}, {0, 4}, "", {});
  auto last = hdf5_images(dir / "last.h5");
  ASSERT_EQ(last->spec().input, (Shape{3, 5, 6}));
  EXPECT_EQ(last->spec().classes, 5);
  std::vector<uint8_t> out(90);
  int64_t label = -1;
  last->read(1, out.data(), &label);
  EXPECT_EQ(label, 4);
  for (size_t c = 0; c < 3; ++c)
    for (size_t p = 0; p < 30; ++p) EXPECT_EQ(out[c * 30 + p], pixels[90 + p * 3 + c]);

  write_images(dir / "first.h5", {5, 6, 3}, {0, 1}, "NCHW", {"a", "b", "c"});
  auto first = hdf5_images(dir / "first.h5");
  ASSERT_EQ(first->spec().input, (Shape{5, 6, 3}));
  EXPECT_EQ(first->spec().classes, 3);
  EXPECT_EQ(first->spec().class_names, (std::vector<std::string>{"a", "b", "c"}));
  first->read(1, out.data(), &label);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), pixels.begin() + 90));

  write_images(dir / "gray.h5", {5, 6}, {0, 1}, "", {});
  EXPECT_EQ(hdf5_images(dir / "gray.h5")->spec().input, (Shape{1, 5, 6}));
}

TEST_F(Hdf5Images, LabelsAreChecked) {
  Scratch dir;
  write_images(dir / "a.h5", {1, 4, 4}, {0, 1, 2}, "NCHW", {"a", "b"});
  EXPECT_THAT(error_of([&] { hdf5_images(dir / "a.h5"); }), HasSubstr("label 2 of sample 2 is outside [0, 2)"));
  write_images(dir / "b.h5", {1, 4, 4}, {0, -3}, "NCHW", {});
  EXPECT_THAT(error_of([&] { hdf5_images(dir / "b.h5"); }), HasSubstr("label -3 of sample 1"));
}

TEST_F(Hdf5Arrays, AnyTwoDatasetsMakeRecords) {
  Scratch dir;
  auto x = pattern<float>(10 * 4);
  auto y = pattern<float>(10 * 2);
  std::vector<int32_t> k{0, 1, 2, 0, 1, 2, 0, 1, 2, 0};
  Hdf5Writer w(dir / "a.h5");
  w.create("x", {4}, f32, {3}, 1);
  w.append("x", x.data(), 10);
  w.create("y", {2}, f32, {3}, 1);
  w.append("y", y.data(), 10);
  w.create("k", {}, i32, {3});
  w.append("k", k.data(), 10);
  w.finish();
  Loader regression(hdf5_arrays(dir / "a.h5", "x", "y"), {.sampler = {.batch = 10, .shuffle = false}});
  Batch b = regression.next();
  EXPECT_EQ(b.input.to_vector<float>(), x);
  EXPECT_EQ(b.target.to_vector<float>(), y);
  EXPECT_EQ(b.target.shape(), (Shape{10, 2}));
  Loader classes(hdf5_arrays(dir / "a.h5", "x", "k", 3), {.sampler = {.batch = 10, .shuffle = false}});
  EXPECT_EQ(classes.next().target.to_vector<int32_t>(), k);
  EXPECT_THROW(hdf5_arrays(dir / "a.h5", "x", "k", 2), Error);
  EXPECT_THAT(error_of([&] { hdf5_arrays(dir / "a.h5", "x", "z"); }), HasSubstr("x f32 [10, 4]"));
}

}  // namespace
}  // namespace xylem
