// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Safetensors : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "t.safetensors") const { return (dir_ / name).string(); }
  void write_bytes(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  // A file with this header and this many zero bytes of data.
  void write_file(const std::string& header, size_t data_bytes) const {
    uint64_t n = header.size();
    write_bytes(std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(data_bytes, '\0'));
  }
  std::string load_error() const {
    return error_of([&] { load_safetensors(path()); });
  }

  Scratch scratch_;
  const fs::path dir_ = scratch_.path();
};

Tensor find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& t : tensors)
    if (t.name == name) return t.tensor;
  return {};
}

TEST_F(Safetensors, RoundTripsEveryTypeAndMetadata) {
  std::vector<NamedTensor> tensors;
  for (DType t : {u8, f64, f32, f16, bf16, i64, i32, i8, boolean})
    tensors.push_back({name_of(t), from_vector<float>({0, 1, 1, 0, 1, 0}, {2, 3}).to(t)});
  tensors.push_back({"transposed", from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3}).transpose(0, 1)});
  tensors.push_back({"scalar", full({}, 7)});
  tensors.push_back({"empty", zeros({0, 4}, f16)});
  save_safetensors(path(), tensors, {{"format", "pt"}, {"note", "\"quoted\""}});

  Metadata metadata;
  auto loaded = load_safetensors(path(), &metadata);
  EXPECT_EQ(metadata, (Metadata{{"format", "pt"}, {"note", "\"quoted\""}}));
  ASSERT_EQ(loaded.size(), tensors.size());
  for (const NamedTensor& t : tensors) {
    Tensor got = find(loaded, t.name);
    ASSERT_TRUE(got.defined()) << t.name;
    EXPECT_EQ(got.dtype(), t.tensor.dtype());
    EXPECT_EQ(got.shape(), t.tensor.shape());
    EXPECT_EQ(got.to_vector<double>(), t.tensor.to_vector<double>()) << t.name;
  }
}

// The format itself, byte by byte, as its specification describes it.
TEST_F(Safetensors, WritesTheFormat) {
  save_safetensors(path(), {{"a", from_vector<uint8_t>({7, 8, 9}, {3})}, {"b", from_vector<float>({1, -2}, {1, 2})}});
  std::string file = read_file(path());
  uint64_t n = 0;
  std::memcpy(&n, file.data(), 8);
  EXPECT_EQ((8 + n) % 8, 0u);
  auto header = nlohmann::json::parse(file.substr(8, n));
  EXPECT_EQ(header["a"]["dtype"], "U8");
  EXPECT_EQ(header["a"]["shape"], (std::vector<int>{3}));
  EXPECT_EQ(header["a"]["data_offsets"], (std::vector<int>{8, 11}));  // after the wider type
  EXPECT_EQ(header["b"]["dtype"], "F32");
  EXPECT_EQ(header["b"]["data_offsets"], (std::vector<int>{0, 8}));
  ASSERT_EQ(file.size(), 8 + n + 11);
  float b[2];
  std::memcpy(b, file.data() + 8 + n, 8);
  EXPECT_EQ(b[0], 1);
  EXPECT_EQ(b[1], -2);
  EXPECT_EQ(file.substr(8 + n + 8), "\x07\x08\x09");
}

TEST_F(Safetensors, ReadsUnalignedTensors) {
  std::string header =
      R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"y":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  uint64_t n = header.size();
  float value = 2.5;
  write_bytes(std::string(reinterpret_cast<const char*>(&n), 8) + header + "\x03" +
              std::string(reinterpret_cast<const char*>(&value), 4));
  auto loaded = load_safetensors(path());
  EXPECT_EQ(find(loaded, "x").item(), 3);
  EXPECT_EQ(find(loaded, "y").item(), 2.5);
}

TEST_F(Safetensors, WritingToALoadedTensorLeavesTheFileAlone) {
  save_safetensors(path(), {{"a", ones({4})}});
  std::string before = read_file(path());
  find(load_safetensors(path()), "a").fill_(3);
  EXPECT_EQ(read_file(path()), before);
}

TEST_F(Safetensors, TensorsOutliveTheFile) {
  save_safetensors(path(), {{"a", full({1000}, 5)}});
  Tensor a = find(load_safetensors(path()), "a");
  fs::remove(path());
  save_safetensors(path(), {{"a", full({1000}, 6)}});
  EXPECT_EQ(a.to_vector<float>(), std::vector<float>(1000, 5));
}

TEST_F(Safetensors, EmptyFileOfNoTensors) {
  save_safetensors(path(), {});
  EXPECT_TRUE(load_safetensors(path()).empty());
}

TEST_F(Safetensors, ReportsMissingAndForeignFiles) {
  EXPECT_THAT(load_error(), AllOf(HasSubstr("cannot open"), HasSubstr(path()), HasSubstr("No such file")));
  write_bytes("abc");
  EXPECT_THAT(load_error(), AllOf(HasSubstr("not a safetensors file"), HasSubstr("3 bytes")));
  write_bytes("this is a text file and not a checkpoint at all");
  EXPECT_THAT(load_error(), AllOf(HasSubstr("not a safetensors file"), HasSubstr(path())));
  write_file("[1, 2]", 0);
  EXPECT_THAT(load_error(), HasSubstr("not a JSON object"));
  write_file("{\"a\": ", 0);
  EXPECT_THAT(load_error(), HasSubstr("not a JSON object"));
}

TEST_F(Safetensors, ATensorOfAForeignTypeIsAnErrorForWhoReadsIt) {
  write_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
             R"("scales":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[8,12]},)"
             R"("index":{"dtype":"I16","shape":[3],"data_offsets":[12,18]}})",
             18);
  auto loaded = load_safetensors(path());
  ASSERT_EQ(loaded.size(), 3u);
  EXPECT_EQ(find(loaded, "a").to_vector<float>(), std::vector<float>(2, 0));
  Tensor scales = find(loaded, "scales");
  EXPECT_EQ(scales.shape(), (Shape{2, 2}));
  EXPECT_THAT(error_of([&] { scales.to_vector<float>(); }),
              AllOf(HasSubstr(path()), HasSubstr("'scales' has type F8_E4M3, which Xylem does not have")));
  Tensor into = zeros({3});
  EXPECT_THAT(error_of([&] { into.copy_(find(loaded, "index")); }), HasSubstr("'index' has type I16"));
}

TEST_F(Safetensors, AGitLfsPointerIsNamed) {
  write_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 548105171\n");
  EXPECT_THAT(load_error(), AllOf(HasSubstr(path()), HasSubstr("Git LFS pointer"), HasSubstr("git lfs pull")));
}

TEST_F(Safetensors, ReportsTruncation) {
  save_safetensors(path(), {{"weight", ones({64})}});
  std::string whole = read_file(path());
  for (size_t keep : {whole.size() - 1, whole.size() - 200, size_t(40), size_t(8)}) {
    write_bytes(whole.substr(0, keep));
    EXPECT_THAT(load_error(), AllOf(HasSubstr("truncated"), HasSubstr(path()))) << keep;
  }
  write_bytes(whole + "extra");
  EXPECT_THAT(load_error(), HasSubstr("5 bytes that belong to no tensor"));
}

TEST_F(Safetensors, ReportsWrongHeaders) {
  auto entry = [](const char* type, const char* shape, const char* range) {
    return std::string(R"({"w":{"dtype":")") + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + range + "}}";
  };
  write_file(entry("F32", "[2]", "[0,4]"), 4);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("'w'"), HasSubstr("takes 8 bytes but its offsets span 4")));
  write_file(entry("F32", "[1]", "[4,0]"), 4);
  EXPECT_THAT(load_error(), HasSubstr("before it begins"));
  write_file(entry("F32", "[1]", "[4,8]"), 8);
  EXPECT_THAT(load_error(), HasSubstr("leave a gap"));
  write_file(entry("F32", "[-1]", "[0,4]"), 4);
  EXPECT_THAT(load_error(), HasSubstr("'w'"));
  write_file(entry("F32", "[4611686018427387904,4]", "[0,0]"), 0);  // the product wraps around to 0
  EXPECT_THAT(load_error(), HasSubstr("impossible shape"));
  write_file(entry("F32", "\"x\"", "[0,4]"), 4);
  EXPECT_THAT(load_error(), HasSubstr("'w'"));
  write_file(R"({"w":{"shape":[1]}})", 4);
  EXPECT_THAT(load_error(), HasSubstr("malformed header entry"));
}

TEST_F(Safetensors, FailedSaveKeepsThePreviousFile) {
  save_safetensors(path(), {{"a", ones({4})}});
  EXPECT_THROW(save_safetensors(path(), {{"a", zeros({4})}, {"a", zeros({4})}}), Error);
  EXPECT_EQ(find(load_safetensors(path()), "a").to_vector<float>(), std::vector<float>(4, 1));
  EXPECT_THROW(save_safetensors((dir_ / "absent" / "t.safetensors").string(), {{"a", ones({4})}}), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1) << "something was left behind";
}

TEST_F(Safetensors, ReadsShardsThroughTheirIndex) {
  save_safetensors(path("model-00001-of-00002.safetensors"), {{"a", full({2}, 1)}});
  save_safetensors(path("model-00002-of-00002.safetensors"), {{"b", full({2}, 2)}, {"c", full({2}, 3)}});
  std::ofstream(path("model.safetensors.index.json"))
      << R"({"metadata":{"total_size":24},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
      << R"("b":"model-00002-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})";
  for (const std::string& where : {dir_.string(), path("model.safetensors.index.json")}) {
    auto tensors = load_checkpoint_tensors(where);
    ASSERT_EQ(tensors.size(), 3u);
    EXPECT_EQ(find(tensors, "c").to_vector<float>(), std::vector<float>(2, 3));
  }
  save_safetensors(path("model.safetensors"), {{"single", ones({1})}});
  EXPECT_EQ(load_checkpoint_tensors(dir_.string()).size(), 1u);
  std::ofstream(path("model.safetensors.index.json")) << R"({"weight_map":{"a":"../../etc/passwd"}})";
  EXPECT_THROW(load_checkpoint_tensors(path("model.safetensors.index.json")), Error);
  fs::create_directories(dir_ / "nothing");
  EXPECT_THROW(load_checkpoint_tensors((dir_ / "nothing").string()), Error);
}

}  // namespace
}  // namespace xylem
