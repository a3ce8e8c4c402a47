// SPDX-License-Identifier: Apache-2.0
// What TensorRT itself makes of exported models: TensorRT-RTX needs no GPU for that.
#ifdef XY_WITH_ONNX
#include <gmock/gmock.h>

#include <set>

#include "models/export/bundle/bundle.h"
#include "models/export/runtime/tensorrt.h"
#include "models/quantize/quantize.h"
#include "tests/models/lint_models.h"
#include "tests/models/zoo_cases.h"

#define XY_NEEDS_TENSORRT() \
  if (!xylem::tensorrt::available()) GTEST_SKIP() << xylem::tensorrt::why_unavailable()

namespace xylem {
namespace {

using namespace export_tests;
using ::testing::HasSubstr;
using xylem::testing::OnnxBuilder;

OnnxBuilder two_inputs() {
  OnnxBuilder b(17);
  b.input("x", {"batch", "3"}).input("bias", {"3"}).output("y", {"batch", "3"});
  b.node("Add", {"x", "bias"}, {"y"});
  return b;
}

// Every position of the virtual tables that is called gives what it must.
TEST(TensorRt, TheLoadedLibraryHasTheTablesThatAreDeclared) {
  XY_NEEDS_TENSORRT();
  EXPECT_THAT(tensorrt::version(), HasSubstr("TensorRT"));
  const std::string file = two_inputs().save("trt_two_inputs");
  auto inputs = tensorrt::inputs(file);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[0].name, "x");
  EXPECT_EQ(inputs[0].shape, (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(inputs[1].name, "bias");
  EXPECT_EQ(inputs[1].shape, (std::vector<int64_t>{3}));
  tensorrt::Build build = tensorrt::build(file, {.sizes = {{"x", {{1, 3}, {2, 3}, {4, 3}}}}});
  EXPECT_TRUE(build.parsed);
  EXPECT_GE(build.layers, 1);
  EXPECT_GT(build.engine.size(), 100u) << (build.messages.empty() ? "" : build.messages[0].text);
}

TEST(TensorRt, ErrorsNameTheInputTheSizesAndTheNode) {
  XY_NEEDS_TENSORRT();
  const std::string file = two_inputs().save("trt_sizes");
  EXPECT_THAT(error_of([&] { tensorrt::build(file); }), HasSubstr("input 'x' has dynamic dimensions"));
  EXPECT_THAT(error_of([&] {
                tensorrt::build(file, {.sizes = {{"x", {{4, 3}, {2, 3}, {1, 3}}}}});
              }),
              HasSubstr("TensorRT finds the sizes of the inputs inconsistent"));
  EXPECT_THAT(error_of([&] { tensorrt::build("absent.onnx"); }), HasSubstr("there is no file 'absent.onnx'"));

  OnnxBuilder b(17);
  b.input("x", {"2", "3", "3"}).output("y", {"2"});
  b.node("Det", {"x"}, {"y"});
  b.graph.mutable_node(0)->set_name("/det");
  tensorrt::Build refused = tensorrt::build(b.save("trt_det"));
  EXPECT_FALSE(refused.parsed);
  EXPECT_FALSE(refused.built());
  ASSERT_FALSE(refused.messages.empty());
  EXPECT_EQ(refused.messages[0].node, "/det");
  EXPECT_EQ(refused.messages[0].op, "Det");
}

TEST(TensorRt, LintAsksItOnDemand) {
  XY_NEEDS_TENSORRT();
  OnnxBuilder b(17);
  b.input("x", {"2", "3", "3"}).output("y", {"2"});
  b.node("Det", {"x"}, {"y"});
  const std::string file = b.save("trt_lint_det");
  auto count = [](const LintReport& r, const std::string& id) { return lint_tests::count(r, id); };
  EXPECT_EQ(count(lint_onnx(file, "trt11.0"), "B1"), 0);
  LintReport report = lint_onnx(file, "trt11.0", {.build = true});
  EXPECT_GE(count(report, "B1"), 1) << report.text();
  LintReport good = lint_onnx(two_inputs().save("trt_lint_add"), "trt11.0", {.build = true});
  EXPECT_EQ(count(good, "B1"), 0) << good.text();
  EXPECT_EQ(count(good, "B2"), 1) << good.text();
}

ExportOptions options_for(Profile profile) {
  return {.profile = profile,
          .ranges = {{"batch", {.min = 1, .opt = 2, .max = 4}},
                     {"seq", {.min = 1, .opt = 4, .max = 8}},
                     {"height", {.min = 4, .opt = 8, .max = 16, .multiple = 4}},
                     {"width", {.min = 4, .opt = 8, .max = 16, .multiple = 4}}}};
}

void expect_built(const BundleReport& report) {
  ASSERT_TRUE(report.engine);
  EXPECT_TRUE(report.engine->built) << report.text();
  EXPECT_GT(report.engine->bytes, 1000);
}

BundleReport bundle(Module& model, const ExportForward& forward, const ExportInput& input, Profile profile) {
  return export_bundle(model, forward, {input}, temporary("trt_bundle"),
                       {.graph = options_for(profile), .verify = true});
}

TEST(TensorRt, TheZooIsParsedAndBuilt) {
  XY_NEEDS_TENSORRT();
  for (const Case& c : cases())
    for (Profile profile : {Profile::trt8, Profile::trt10, Profile::trt11}) {
      SCOPED_TRACE(c.name + " for " + name_of(profile));
      auto model = zoo::create(c.name, c.options);
      disturb(*model);
      expect_built(bundle(
          *model, [&](const Tensors& x) -> Tensors { return {(*model)(x[0])}; }, traced_input(c), profile));
    }
}

TEST(TensorRt, QuantizedModelsAreParsedAndBuilt) {
  XY_NEEDS_TENSORRT();
  for (const Case& c : cases()) {
    if (c.name == "unet") continue;
    for (Profile profile : {Profile::trt8, Profile::trt10, Profile::trt11}) {
      SCOPED_TRACE(c.name + " int8 for " + name_of(profile));
      auto model = zoo::create(c.name, c.options);
      auto run = [&] { (*model)(input_of(c, 2, 4)); };
      quantize::prepare(*model, run, {.small_layers = true});
      quantize::calibrate(*model, run);
      quantize::freeze(*model);
      model->eval();
      expect_built(bundle(
          *model, [&](const Tensors& x) -> Tensors { return {(*model)(x[0])}; }, traced_input(c), profile));
    }
  }
}

TEST(TensorRt, DecodersWithACacheAreParsedAndBuilt) {
  XY_NEEDS_TENSORRT();
  for (const char* name : {"gpt2", "llama"})
    for (CacheKind cache : {CacheKind::growing, CacheKind::fixed}) {
      if (cache == CacheKind::fixed && std::string(name) == "gpt2") continue;  // one is enough: TensorScatter
      SCOPED_TRACE(name);
      Case c = *std::find_if(cases().begin(), cases().end(), [&](const Case& k) { return k.name == name; });
      auto model = zoo::create(c.name, c.options);
      BundleOptions options{.graph = {.profile = Profile::trt11}, .verify = true};
      if (cache == CacheKind::fixed) options.graph.opset = 24;
      expect_built(
          export_decoder_bundle(dynamic_cast<LanguageModel&>(*model), temporary("trt_decoder"), options, cache));
    }
}

TEST(TensorRt, CudaEnginesAgreeWithTheModel) {
  XY_NEEDS_TENSORRT();
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    auto model = zoo::create(c.name, c.options);
    BundleReport report = bundle(
        *model, [&](const Tensors& x) -> Tensors { return {(*model)(x[0])}; }, traced_input(c), Profile::trt11);
    expect_built(report);
    if (!report.engine->not_run.empty()) GTEST_SKIP() << report.engine->not_run;
    ASSERT_EQ(report.engine->runs.size(), 1u);
    EXPECT_TRUE(report.engine->runs[0].passed) << report.text();
  }
}

}  // namespace
}  // namespace xylem
#endif
