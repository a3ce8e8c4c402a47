// SPDX-License-Identifier: Apache-2.0
// Which constants of an ONNX file become parameters: those that a layer reads as its weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "models/export/import/import.h"
#include "tests/models/onnx_builder.h"

namespace xylem {
namespace {

using ::testing::IsEmpty;
using testing::OnnxBuilder;
using ::testing::UnorderedElementsAre;

std::set<std::string> trained(const OnnxBuilder& b, const ImportOptions& options = {}) {
  std::set<std::string> names;
  for (const NamedTensor& p : import_onnx(b.save("weights"), options).parameters()) names.insert(p.name);
  return names;
}

TEST(ImportWeights, WhatLayersReadIsTrained) {
  OnnxBuilder b;
  b.input("x", {"n", "4"}).f32("w", {4, 6}).f32("b", {6}).f32("fc", {3, 6}).f32("fb", {3});
  b.node("MatMul", {"x", "w"}, {"h"}).node("Add", {"h", "b"}, {"a"}).node("Relu", {"a"}, {"r"});
  b.node("Gemm", {"r", "fc", "fb"}, {"y"}).attr("transB", 1);
  EXPECT_THAT(trained(b.output("y", {"n", "3"})), UnorderedElementsAre("w", "b", "fc", "fb"));
}

TEST(ImportWeights, ATransposedWeightIsOneToo) {
  OnnxBuilder b;
  b.input("x", {"n", "4"}).f32("w", {6, 4}).node("Transpose", {"w"}, {"t"}).ints("perm", {1, 0});
  b.node("MatMul", {"x", "t"}, {"y"}).output("y", {"n", "6"});
  EXPECT_THAT(trained(b), UnorderedElementsAre("w"));
}

TEST(ImportWeights, AMaskOfScoresStaysAsItIs) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 4, 4}, {4}}) {  // causal; one of keys
    OnnxBuilder b;
    b.input("q", {"2", "4", "8"}).input("k", {"2", "8", "4"}).f32("mask", shape, -1e9f).f32("scale", {}, 0.35f);
    b.node("MatMul", {"q", "k"}, {"s"}).node("Mul", {"s", "scale"}, {"t"}).node("Add", {"t", "mask"}, {"m"});
    b.node("Softmax", {"m"}, {"y"}).output("y", {"2", "4", "4"});
    EXPECT_THAT(trained(b), IsEmpty());
  }
}

TEST(ImportWeights, AMaskThatMultipliesStaysAsItIs) {
  OnnxBuilder b;
  b.input("x", {"2", "4"}).f32("w", {4, 4}).f32("mask", {2, 4}).f32("rows", {2, 1});
  b.node("MatMul", {"x", "w"}, {"h"}).node("Mul", {"h", "mask"}, {"m"}).node("Mul", {"m", "rows"}, {"y"});
  EXPECT_THAT(trained(b.output("y", {"2", "4"})), UnorderedElementsAre("w"));
}

TEST(ImportWeights, WhatNormalisesTheInputStaysAsItIs) {
  OnnxBuilder b;
  b.input("x", {"n", "3", "8", "8"}).f32("shift", {1, 3, 1, 1}).f32("factor", {1, 3, 1, 1}).f32("w", {2, 3, 3, 3});
  b.node("Add", {"x", "shift"}, {"a"}).node("Mul", {"a", "factor"}, {"b"});
  b.node("Conv", {"b", "w"}, {"y"}).output("y", {"n", "2", "6", "6"});
  EXPECT_THAT(trained(b), UnorderedElementsAre("w"));
}

TEST(ImportWeights, GainAndBiasOfANormWrittenOutAreTrained) {
  OnnxBuilder b;
  b.input("x", {"n", "6"}).f32("eps", {}, 1e-5f).f32("gain", {6}).f32("bias", {6});
  b.node("ReduceMean", {"x"}, {"mean"}).ints("axes", {-1}).node("Sub", {"x", "mean"}, {"c"});
  b.node("Mul", {"c", "c"}, {"sq"}).node("ReduceMean", {"sq"}, {"var"}).ints("axes", {-1});
  b.node("Add", {"var", "eps"}, {"v"}).node("Sqrt", {"v"}, {"d"}).node("Div", {"c", "d"}, {"n"});
  b.node("Mul", {"n", "gain"}, {"g"}).node("Add", {"g", "bias"}, {"y"}).output("y", {"n", "6"});
  EXPECT_THAT(trained(b), UnorderedElementsAre("gain", "bias"));
}

TEST(ImportWeights, TokensAndTheirPositionsAreTrained) {
  OnnxBuilder b;
  b.input("ids", {"2", "5"}, OnnxBuilder::Proto::INT64).f32("wte", {17, 8}).f32("wpe", {16, 8});
  b.i64("begin", {0}).i64("end", {5}).node("Gather", {"wte", "ids"}, {"e"});
  b.node("Slice", {"wpe", "begin", "end"}, {"p"}).node("Add", {"e", "p"}, {"y"}).output("y", {"2", "5", "8"});
  EXPECT_THAT(trained(b), UnorderedElementsAre("wte", "wpe"));
}

TEST(ImportWeights, AnglesOfRotaryPositionsStayAsTheyAre) {
  OnnxBuilder b;
  b.input("q", {"2", "4", "5", "8"}).input("ids", {"2", "5"}, OnnxBuilder::Proto::INT64).f32("cos", {16, 8});
  b.i64("one", {1}).node("Gather", {"cos", "ids"}, {"c"}).node("Unsqueeze", {"c", "one"}, {"u"});
  b.node("Mul", {"q", "u"}, {"y"}).output("y", {"2", "4", "5", "8"});
  EXPECT_THAT(trained(b), IsEmpty());
}

TEST(ImportWeights, TheCallerMayChoose) {
  OnnxBuilder b;
  b.input("x", {"2", "4"}).f32("table", {2, 4}).f32("w", {4, 4});
  b.node("Add", {"x", "table"}, {"a"}).node("MatMul", {"a", "w"}, {"y"}).output("y", {"2", "4"});
  EXPECT_THAT(trained(b), UnorderedElementsAre("w"));
  auto both = [](const std::string&, bool) { return true; };
  EXPECT_THAT(trained(b, {.trained = both}), UnorderedElementsAre("w", "table"));
  auto frozen = [](const std::string& name, bool is_weight) { return is_weight && name != "w"; };
  EXPECT_THAT(trained(b, {.trained = frozen}), IsEmpty());
}

}  // namespace
}  // namespace xylem
