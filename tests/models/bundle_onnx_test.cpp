// SPDX-License-Identifier: Apache-2.0
#include "models/export/bundle/bundle.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/util/check.h"
#include "models/export/bundle/engine.h"
#include "models/export/bundle/pbtxt.h"
#include "models/export/bundle/reference.h"
#include "models/export/bundle/sizes.h"
#include "models/export/runtime/ort.h"
#include "ops/ops.h"
#include "tests/models/export_helpers.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

triton::Model image_model() {
  triton::Model m{.name = "net"};
  m.inputs = {{"image", f32, {-1, 3, 32, 32}, {"batch", "", "", ""}}};
  m.outputs = {{"logits", f32, {-1, 10}, {"batch", ""}}};
  m.ranges["batch"] = {.min = 1, .opt = 8, .max = 64};
  m.tensorrt = true;
  return m;
}

TEST(Pbtxt, ReadsWhatTritonWrites) {
  auto f = pbtxt::parse(
      "name: \"a b\"  # comment\nmax_batch_size: 8\ninput [ { name: 'x' dims: [ -1, 3 ] } ]\n"
      "dynamic_batching { }\ndims: 4");
  ASSERT_EQ(f.size(), 5u);
  EXPECT_EQ(pbtxt::find(f, "name")->value, "a b");
  EXPECT_EQ(pbtxt::find_all(pbtxt::find(f, "input")->fields, "dims").size(), 2u);
  EXPECT_TRUE(pbtxt::find(f, "dynamic_batching")->message);
}

TEST(Pbtxt, ErrorsNameTheLine) {
  for (const char* text : {"a: 1\nb", "a: \"x\nb: 1", "a {\nb: 1", "a: [ 1 2 ]", "\n:", "}"})
    EXPECT_THROW(pbtxt::parse(text), Error) << text;
  try {
    pbtxt::parse("a: 1\nb 3");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.message(), HasSubstr("line 2"));
  }
  EXPECT_THROW(pbtxt::parse(std::string(100000, '{')), Error);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "a{";
  EXPECT_THROW(pbtxt::parse(deep), Error);
}

TEST(Triton, ConfigurationFitsTheModel) {
  triton::Model m = image_model();
  std::string text = triton::config(m);
  auto f = pbtxt::parse(text);
  EXPECT_EQ(pbtxt::find(f, "max_batch_size")->value, "64");
  auto dims = pbtxt::find_all(pbtxt::find(f, "input")->fields, "dims");
  ASSERT_EQ(dims.size(), 3u);  // without the batch
  EXPECT_EQ(dims[0]->value, "3");
  EXPECT_THAT(text, HasSubstr("image:8x3x32x32"));
  EXPECT_EQ(pbtxt::find_all(f, "model_warmup").size(), 2u);
  EXPECT_TRUE(triton::check_config(text, m).empty());
  m.quantized = true;
  EXPECT_THAT(triton::config(m), HasSubstr("key: \"precision_mode\" value: \"INT8\""));
}

TEST(Triton, T1NamesWhatDoesNotFit) {
  triton::Model m = image_model();
  auto with = [&](const std::string& from, const std::string& to) {
    std::string text = triton::config(m);
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return triton::check_config(text.replace(at, from.size(), to), m);
  };
  auto batch = with("dims: [ 3, 32, 32 ]", "dims: [ -1, 3, 32, 32 ]");
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].id, "T1");
  EXPECT_THAT(batch[0].message, HasSubstr("batch axis is not part of dims"));
  EXPECT_EQ(with("TYPE_FP32", "TYPE_FP16").size(), 1u);
  EXPECT_EQ(with("name: \"logits\"", "name: \"output\"").size(), 2u);
  m.outputs[0].symbols[0] = "";
  m.outputs[0].shape[0] = 4;
  EXPECT_THAT(triton::config(m), HasSubstr("max_batch_size: 0"));
}

TEST(Triton, ModelsWithoutABatchAndScalars) {
  triton::Model m = image_model();
  m.inputs.push_back({"length", i64, {-1}, {"batch"}});
  std::string text = triton::config(m);
  EXPECT_THAT(text, HasSubstr("reshape: { shape: [ ] }"));
  EXPECT_TRUE(triton::check_config(text, m).empty());
  m.inputs.push_back({"past", f32, {2, -1}, {"", "past"}});
  text = triton::config(m);
  EXPECT_THAT(text, HasSubstr("max_batch_size: 0"));
  EXPECT_TRUE(triton::check_config(text, m).empty());
  m.inputs[0].dtype = bf16;
  EXPECT_THROW(triton::config(m), Error);
}

TEST(Engine, FlagsAreThoseOfTheVersion) {
  triton::Model m = image_model();
  m.quantized = true;
  auto script = [&](const char* target) { return engine_script(m, lint::parse_target(target)); };
  EXPECT_THAT(script("trt8.6"), HasSubstr("--fp16 --int8"));
  EXPECT_THAT(script("trt10.12"), HasSubstr("--stronglyTyped"));
  EXPECT_THAT(script("trt10.12"), Not(HasSubstr("--int8")));
  EXPECT_THAT(script("trt11.0"), Not(HasSubstr("--stronglyTyped")));
  EXPECT_THAT(script("trt11.0"), HasSubstr("--loadRefOutputs=logits:reference/logits.bin"));
  for (const char* target : {"trt8.6", "trt11.0"}) {
    EXPECT_THAT(script(target), HasSubstr("--minShapes=image:1x3x32x32"));
    EXPECT_THAT(script(target), HasSubstr("--optShapes=image:8x3x32x32"));
    EXPECT_THAT(script(target), HasSubstr("--maxShapes=image:64x3x32x32"));
    EXPECT_THAT(script(target), Not(HasSubstr("--best")));
  }
}

TEST(Reference, NpyIsWhatNumPyReads) {
  Scratch scratch;
  std::string path = scratch / "x.npy";
  save_npy(path, from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3}));
  std::string bytes = read_file(path);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  size_t header = size_t(uint8_t(bytes[8])) + 256 * size_t(uint8_t(bytes[9]));
  EXPECT_EQ((10 + header) % 64, 0u);
  EXPECT_THAT(bytes.substr(10, header), HasSubstr("'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), "));
  float last;
  std::memcpy(&last, bytes.data() + 10 + header + 20, 4);
  EXPECT_EQ(last, 6);
  EXPECT_EQ(bytes.size(), 10 + header + 24);
}

TEST(Sizes, CoverTheRangeAndObeyRelations) {
  Tensor x = zeros({2, 5, 7});
  std::vector<ExportInput> in = {{"x", x, {{0, "seq"}, {1, "past"}, {2, "total"}}}};
  std::map<std::string, DimRange> ranges = {{"seq", {.min = 1, .opt = 4, .max = 8}},
                                            {"past", {.min = 0, .opt = 8, .max = 16}}};
  for (const Sizes& s : checked_sizes(in, ranges)) EXPECT_EQ(s.at("total"), s.at("past") + s.at("seq"));
  std::vector<Sizes> one = checked_sizes({{"x", x, {{0, "batch"}}}}, {{"batch", {.min = 1, .opt = 8, .max = 64}}});
  std::vector<int64_t> sizes;
  for (const Sizes& s : one) sizes.push_back(s.at("batch"));
  EXPECT_THAT(sizes, ElementsAre(1, 8, 5, 64));
  Tensor ids = from_vector<int64_t>({3, 9, 12}, {1, 3});
  for (int64_t v : random_inputs({{"ids", ids, {{1, "seq"}}}}, {{"seq", 50}}, 1)[0].to_vector<int64_t>())
    EXPECT_TRUE(v == 3 || v == 9 || v == 12);
}

// TensorRT#1808, #2981: the mask of a decoder is as long as its cache and the new tokens, at each end of the profile;
// the cache may be empty.
TEST(Sizes, ADecodersMaskIsAsLongAsItsCacheAndItsTokens) {
  std::vector<ExportInput> in = {{"input_ids", zeros({1, 3}, i64), {{0, "batch"}, {1, "seq"}}},
                                 {"attention_mask", zeros({1, 7}, i64), {{0, "batch"}, {1, "total"}}},
                                 {"past_key_values.0.key", zeros({1, 2, 4, 8}), {{0, "batch"}, {2, "past"}}}};
  triton::Model m{.name = "decoder"};
  m.ranges = complete_ranges(in, {{"seq", {.min = 1, .opt = 2, .max = 8}}, {"past", {.min = 0, .opt = 5, .max = 16}}});
  EXPECT_EQ(complete_ranges(in, {}).at("past").min, 0);
  for (const ExportInput& i : in) {
    triton::Port p{i.name, i.example.dtype(), i.example.shape().vec(), std::vector<std::string>(i.example.rank())};
    for (const auto& [dim, symbol] : i.dynamic) p.shape[dim] = -1, p.symbols[dim] = symbol;
    m.inputs.push_back(p);
  }
  std::string script = engine_script(m, lint::parse_target("trt10.9"));
  EXPECT_THAT(script, HasSubstr("minShapes=input_ids:1x1,attention_mask:1x1,past_key_values.0.key:1x2x0x8"));
  EXPECT_THAT(script, HasSubstr("optShapes=input_ids:1x2,attention_mask:1x7,past_key_values.0.key:1x2x5x8"));
  EXPECT_THAT(script, HasSubstr("maxShapes=input_ids:4x8,attention_mask:4x24,past_key_values.0.key:4x2x16x8"));
}

// onnxruntime#12120, triton server#3701: engines are built for a range of shapes, and before the first request.
TEST(Triton, ProfilesAndWarmUpReachBothEndsOfTheRange) {
  triton::Model m = image_model();
  auto fields = pbtxt::parse(triton::config(m));
  std::map<std::string, std::string> parameters;
  auto* tensorrt =
      pbtxt::find(pbtxt::find(pbtxt::find(fields, "optimization")->fields, "execution_accelerators")->fields,
                  "gpu_execution_accelerator");
  for (const auto* p : pbtxt::find_all(tensorrt->fields, "parameters"))
    parameters[pbtxt::find(p->fields, "key")->value] = pbtxt::find(p->fields, "value")->value;
  EXPECT_EQ(parameters["trt_profile_min_shapes"], "image:1x3x32x32");
  EXPECT_EQ(parameters["trt_profile_opt_shapes"], "image:8x3x32x32");
  EXPECT_EQ(parameters["trt_profile_max_shapes"], "image:64x3x32x32");
  std::vector<std::string> batches;
  for (const auto* w : pbtxt::find_all(fields, "model_warmup")) {
    batches.push_back(pbtxt::find(w->fields, "batch_size")->value);
    EXPECT_EQ(pbtxt::find(pbtxt::find(w->fields, "inputs")->fields, "key")->value, "image");
  }
  EXPECT_THAT(batches, ElementsAre("1", "64"));
}

// ---- whole bundles
// -----------------------------------------------------------------------------------------------------

BundleReport make_bundle(const fs::path& folder, const BundleOptions& options) {
  auto model = zoo::create("resnet_small", {{"width", int64_t(16)}, {"stages", int64_t(2)}, {"channels", int64_t(3)}});
  std::vector<ExportInput> inputs = {{"image", sample_normal({2, 3, 16, 16}).to(f32), {{0, "batch"}}}};
  model->eval();
  return export_bundle(
      *model, [&](const Tensors& x) -> Tensors { return {(*model)(x[0])}; }, inputs, folder.string(), options);
}

TEST(Bundle, HoldsEverythingAndProvesItself) {
  Scratch scratch;
  fs::path folder = scratch / "out";
  BundleOptions options{.name = "net", .verify = OrtSession::available()};
  options.graph.profile = Profile::trt8;
  options.graph.outputs = {"logits"};
  options.graph.ranges["batch"] = {.min = 1, .opt = 2, .max = 5};
  BundleReport report = make_bundle(folder, options);
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(report.checks.size(), options.verify ? 6u : 0u) << report.text();  // batches of 1, 2 and 5, twice
  for (const char* file :
       {"model.onnx", "README.md", "lint.json", "build_engine.sh", "verify.sh", "reference/image.npy",
        "reference/logits.bin", "reference/request.json", "test_data_set_0/input_0.pb", "test_data_set_0/output_0.pb",
        "triton/net/config.pbtxt", "triton/net/1/model.onnx"})
    EXPECT_TRUE(fs::exists(folder / file)) << file;
  auto request = nlohmann::json::parse(read_file(folder / "reference/request.json"));
  EXPECT_EQ(request["inputs"][0]["shape"], (std::vector<int>{1, 3, 16, 16}));
  EXPECT_NE(fs::status(folder / "build_engine.sh").permissions() & fs::perms::owner_exec, fs::perms::none);
  EXPECT_FALSE(fs::exists(folder.string() + ".partial"));
  make_bundle(folder, options);  // replaces it
  EXPECT_TRUE(fs::exists(folder / "model.onnx"));
}

// ONNX Runtime's CPU can not run it: the file is read back instead.
TEST(Bundle, Bfloat16IsVerifiedByImport) {
  Scratch scratch;
  BundleOptions options{.name = "net", .verify = true};
  options.graph.profile = Profile::trt11;
  options.graph.precision = ExportPrecision::bf16;
  options.graph.ranges["batch"] = {.min = 1, .opt = 2, .max = 5};
  options.target = "trt11.0";
  BundleReport report = make_bundle(scratch / "out", options);
  EXPECT_FALSE(report.failed()) << report.text();
  EXPECT_EQ(report.checks.size(), 3u);
  for (const BundleCheck& c : report.checks) {
    EXPECT_TRUE(c.imported);
    EXPECT_GT(c.worst, 1e-5) << "not rounded to bf16";
  }
  EXPECT_THAT(report.text(), HasSubstr("imported again"));
}

TEST(Bundle, ExternalDataLiesInAFolderNamedLikeTheModel) {
  Scratch scratch;
  BundleOptions options{.name = "net"};
  options.graph.external_data = true;
  make_bundle(scratch / "out", options);
  fs::path version = scratch / "out/triton/net/1/model.onnx";
  EXPECT_TRUE(fs::exists(version / "model.onnx"));
  EXPECT_TRUE(fs::exists(version / "model.weights.bin"));
}

// Language models with a cache, as `xylem export --cache` writes them.
TEST(Bundle, DecodersGoOnTokenByToken) {
  auto model = zoo::create("llama", export_tests::small_llama());
  model->eval();
  auto& language = dynamic_cast<LanguageModel&>(*model);
  for (CacheKind cache : {CacheKind::growing, CacheKind::fixed}) {
    Scratch scratch;
    fs::path folder = scratch / "out";
    BundleOptions options{.name = "llama", .target = "trt10.15", .verify = OrtSession::available()};
    options.graph.profile = Profile::trt10;
    options.graph.precision = ExportPrecision::fp32;
    options.graph.opset = 24;
    BundleReport report = export_decoder_bundle(language, folder.string(), options, cache, 12);
    EXPECT_TRUE(report.passed()) << report.text();
    if (options.verify) {
      EXPECT_EQ(report.checks.size(), 8u);  // one sequence and eight, prompts of 1 and 8, optimized or not
    }
    std::string script = read_file(folder / "build_engine.sh"),
                config = read_file(folder / "triton/llama/config.pbtxt");
    const bool grows = cache == CacheKind::growing;
    EXPECT_THAT(script, HasSubstr(grows ? "past_key_values.0.key:1x2x0x4" : "past_key_values.0.key:1x2x12x4"));
    EXPECT_THAT(config, HasSubstr(grows ? "attention_mask:8x16" : "input_ids:8x8"));
    EXPECT_TRUE(fs::exists(folder / "reference/past_key_values.1.value.npy"));
    EXPECT_TRUE(fs::exists(folder / "reference/present.1.value.npy"));
  }
}

TEST(Bundle, RefusesAFolderThatIsNoBundle) {
  Scratch scratch;
  std::ofstream(scratch / "thesis.txt") << "important";
  EXPECT_THROW(make_bundle(scratch.path(), {}), Error);
  EXPECT_TRUE(fs::exists(scratch / "thesis.txt"));
  EXPECT_THROW(make_bundle(scratch / "out", {.name = "a/b"}), Error);
}

}  // namespace
}  // namespace xylem
