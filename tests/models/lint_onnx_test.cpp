// SPDX-License-Identifier: Apache-2.0
// Each rule of the lint finds what it is for, and says nothing of the same model put right. Rules of quantized models:
// lint_quantization_onnx_test.cpp.
#include <nlohmann/json.hpp>

#include "core/util/check.h"
#include "tests/models/lint_models.h"

namespace xylem::lint_tests {
namespace {

TEST(Lint, CleanModelsHaveNoFindings) {
  for (const char* target : {"trt8.6", "trt10.9", "trt11.0", "ort-cpu"}) {
    OnnxBuilder b = clean();
    b.conv_int8("x", "c", 16, 16).node("Relu", {"c"}, {"y"});
    LintReport r = lint(b, target);
    EXPECT_TRUE(r.findings.empty()) << r.text();
  }
}

TEST(Lint, TargetsThatAreUnknownAreNamed) {
  std::string file = one_op("Relu").save("t");
  for (const char* target : {"trt7.0", "trt12", "tensorrt", "trt", "trt8.x", "", "ort-gpu", "trt8..4", "trt8.6.1",
                             "trt-8", "trt99999999999"})
    EXPECT_THROW(
        {
          try {
            lint_onnx(file, target);
          } catch (const Error& e) {
            EXPECT_THAT(e.message(), HasSubstr(std::string("'") + target + "'"));
            throw;
          }
        },
        Error)
        << target;
  EXPECT_EQ(lint_onnx(file, "trt10").target, "trt10.16");
  EXPECT_EQ(lint_onnx(file, "trt8").target, "trt8.6");
}

TEST(Lint, FilesThatAreNoModelAreErrors) {
  std::string path = one_op("Relu").save("damaged");
  EXPECT_THROW(lint_onnx(path + ".missing", "trt10"), Error);
  std::ofstream(path, std::ios::binary) << "this is not protobuf";
  EXPECT_THROW(lint_onnx(path, "trt10"), Error);
}

TEST(LintAlignment, A1HalfChannels) {
  EXPECT_FOUND(lint(gemm(20, 64, Proto::FLOAT16), "trt11.0"), "A1");
  EXPECT_QUIET(lint(gemm(24, 64, Proto::FLOAT16), "trt11.0"), "A1");
  EXPECT_QUIET(lint(gemm(20, 64, Proto::FLOAT), "trt11.0"), "A1");
}

TEST(LintAlignment, A1SparesTheFirstConvolution) {
  OnnxBuilder b(19, 9);
  b.range("batch")
      .input("x", {"batch", "3", "8", "8"}, Proto::FLOAT16)
      .f16("w", {16, 3, 3, 3})
      .node("Conv", {"x", "w"}, {"y"});
  b.output("y", {"batch", "16", "6", "6"}, Proto::FLOAT16);
  EXPECT_QUIET(lint(b, "trt11.0"), "A1");
}

TEST(LintAlignment, A2IntegerChannels) {
  OnnxBuilder bad(17), good(17);
  bad.range("batch")
      .input("x", {"batch", "24", "8", "8"})
      .conv_int8("x", "y", 24, 32)
      .output("y", {"batch", "32", "8", "8"});
  good.range("batch")
      .input("x", {"batch", "32", "8", "8"})
      .conv_int8("x", "y", 32, 32)
      .output("y", {"batch", "32", "8", "8"});
  EXPECT_THAT(message(lint(bad, "trt8.6"), "A2"), HasSubstr("24 channels"));
  EXPECT_QUIET(lint(good, "trt8.6"), "A2");
}

OnnxBuilder attention(const std::string& head, const std::string& length, bool int8) {
  OnnxBuilder b(17);
  b.input("q", {"2", "4", length, head}).input("kt", {"2", "4", head, length}).input("v", {"2", "4", length, head});
  b.node("MatMul", {"q", "kt"}, {"s"}).node("Softmax", {"s"}, {"p"});
  if (int8) b.f32("sc", {}, 0.1f).i8("z", {}).qdq("v", "vd", "sc", "z");
  b.node("MatMul", {"p", int8 ? "vd" : "v"}, {"y"}).output("y", {"2", "4", length, head});
  return b;
}

TEST(LintAlignment, A3Heads) {
  EXPECT_FOUND(lint(attention("20", "64", false), "trt8.6"), "A3");
  EXPECT_FOUND(lint(attention("264", "64", false), "trt8.6"), "A3");
  EXPECT_QUIET(lint(attention("64", "64", false), "trt8.6"), "A3");
}

TEST(LintAlignment, A4IntegerHeads) {
  EXPECT_FOUND(lint(attention("80", "64", true), "trt8.6"), "A4");
  EXPECT_FOUND(lint(attention("64", "1024", true), "trt8.6"), "A4");
  EXPECT_QUIET(lint(attention("64", "512", true), "trt8.6"), "A4");
}

TEST(LintAlignment, A5Vocabulary) {
  EXPECT_THAT(message(lint(gemm(64, 50257, Proto::FLOAT16), "trt11.0"), "A5"), HasSubstr("50304"));
  EXPECT_QUIET(lint(gemm(64, 50304, Proto::FLOAT16), "trt11.0"), "A5");
}

TEST(LintOperators, O1Versions) {
  EXPECT_FOUND(lint(one_op("Relu", 20), "trt8.6"), "O1");
  EXPECT_QUIET(lint(one_op("Relu", 20), "trt10.1"), "O1");
  OnnxBuilder b = clean(17, 13);
  b.node("Relu", {"x"}, {"y"});
  EXPECT_THAT(message(lint(b, "trt8.6"), "O1"), HasSubstr("IR version 13"));
}

TEST(LintOperators, O2Support) {
  EXPECT_THAT(message(lint(one_op("Gelu", 20), "trt9.3"), "O2"), HasSubstr("first: 10.1"));
  EXPECT_QUIET(lint(one_op("Gelu", 20), "trt10.1"), "O2");
  EXPECT_THAT(message(lint(one_op("Det"), "trt11.0"), "O2"), HasSubstr("not supported by any TensorRT"));
  EXPECT_QUIET(lint(one_op("Det"), "ort-cpu"), "O2");
}

TEST(LintOperators, O3Attributes) {
  auto topk = [](int64_t k) {
    OnnxBuilder b = clean();
    b.i64("k", {k}).node("TopK", {"x", "k"}, {"y", "i"});
    return lint(b, "trt10.9");
  };
  EXPECT_FOUND(topk(4000), "O3");
  EXPECT_QUIET(topk(100), "O3");
  auto resize = [](int64_t antialias, const char* mode) {
    OnnxBuilder b = clean(18);
    b.f32("s", {4}, 2).node("Resize", {"x", "", "s"}, {"y"}).attr("antialias", antialias).text("mode", mode);
    return lint(b, "trt10.9");
  };
  EXPECT_EQ(count(resize(1, "linear"), "O3", LintSeverity::error), 1);
  EXPECT_EQ(count(resize(0, "cubic"), "O3", LintSeverity::warning), 1);
  EXPECT_QUIET(resize(0, "linear"), "O3");
  OnnxBuilder pool = clean(), dilated = clean();
  pool.node("MaxPool", {"x"}, {"y"}).ints("kernel_shape", {1, 1});
  dilated.node("MaxPool", {"x"}, {"y", "indices"}).ints("kernel_shape", {1, 1}).ints("dilations", {2, 2});
  EXPECT_QUIET(lint(pool, "trt10.9"), "O3");
  EXPECT_EQ(count(lint(dilated, "trt10.9"), "O3"), 2);
  OnnxBuilder scatter = clean();
  scatter.i64("i", {0}).node("ScatterND", {"x", "i", "x"}, {"y"}).text("reduction", "add");
  EXPECT_FOUND(lint(scatter, "trt10.9"), "O3");
  OnnxBuilder norm = clean(), mean = clean();
  norm.f32("g", {8}).node("LayerNormalization", {"x", "g"}, {"y", "mean"});
  mean.f32("g", {8}).node("LayerNormalization", {"x", "g"}, {"y"});
  EXPECT_FOUND(lint(norm, "trt10.9"), "O3");
  EXPECT_QUIET(lint(mean, "trt10.9"), "O3");
}

TEST(LintOperators, O3AttentionWithACache) {
  OnnxBuilder b(23, 11);
  for (const char* n : {"q", "k", "v", "pk", "pv"}) b.input(n, {"1", "4", "8", "64"});
  b.node("Attention", {"q", "k", "v", "", "pk", "pv"}, {"y"}).output("y", {"1", "4", "8", "64"});
  EXPECT_FOUND(lint(b, "trt10.15"), "O3");
  OnnxBuilder plain(23, 11);
  for (const char* n : {"q", "k", "v"}) plain.input(n, {"1", "4", "8", "64"});
  plain.node("Attention", {"q", "k", "v"}, {"y"}).output("y", {"1", "4", "8", "64"});
  EXPECT_QUIET(lint(plain, "trt10.15"), "O3");
}

TEST(LintOperators, O4DependsOnData) {
  EXPECT_EQ(count(lint(one_op("NonZero"), "trt10.9"), "O4", LintSeverity::error), 1);
  EXPECT_EQ(count(lint(one_op("NonZero"), "ort-cpu"), "O4", LintSeverity::error), 0);
  EXPECT_QUIET(lint(one_op("Relu"), "trt10.9"), "O4");
}

TEST(LintOperators, O5GroupNorm) {
  auto norm = [](int opset, int64_t groups, const char* target) {
    OnnxBuilder b = clean(opset, opset >= 21 ? 10 : 8);
    b.f32("g", {16}).f32("c", {16}).node("GroupNormalization", {"x", "g", "c"}, {"y"}).attr("num_groups", groups);
    return lint(b, target);
  };
  EXPECT_FOUND(norm(18, 4, "trt10.9"), "O5");
  EXPECT_FOUND(norm(21, 1, "trt10.9"), "O5");
  EXPECT_FOUND(norm(21, 4, "trt10.1"), "O5");
  EXPECT_QUIET(norm(21, 4, "trt10.9"), "O5");
}

TEST(LintOperators, O6CausalAttention) {
  auto model = [](const char* keys) {
    OnnxBuilder b(23, 11);
    b.range("seq").range("total").input("q", {"1", "4", "seq", "64"});
    for (const char* n : {"k", "v"}) b.input(n, {"1", "4", keys, "64"});
    b.node("Attention", {"q", "k", "v"}, {"y"}).attr("is_causal", int64_t(1)).output("y", {"1", "4", "seq", "64"});
    return lint(b, "trt10.15");
  };
  EXPECT_FOUND(model("total"), "O6");
  EXPECT_QUIET(model("seq"), "O6");
}

TEST(LintShapes, S1Ranges) {
  OnnxBuilder b(17);
  b.input("x", {"n", "8"}).node("Relu", {"x"}, {"y"}).output("y", {"n", "8"});
  EXPECT_THAT(message(lint(b, "trt10.9"), "S1"), HasSubstr("'n'"));
  EXPECT_QUIET(lint(b, "ort-cpu"), "S1");
  EXPECT_QUIET(lint_onnx(b.save("s1"), "trt10.9", {.ranges = {{"n", {1, 2, 4}}}}), "S1");
  b.range("n");
  EXPECT_QUIET(lint(b, "trt10.9"), "S1");
}

TEST(LintShapes, S2FrozenSizes) {
  auto reshape = [](const std::vector<int64_t>& shape, const char* batch) {
    OnnxBuilder b(17);
    b.range("batch").input("x", {batch, "8"}).i64("s", shape).node("Relu", {"x"}, {"r"});
    b.node("Reshape", {"r", "s"}, {"y"}).output("y", {"n", "4"});
    return lint(b, "ort-cpu");
  };
  EXPECT_THAT(message(reshape({4, 4}, "batch"), "S2"), HasSubstr("dynamic dimension 'batch'"));
  EXPECT_QUIET(reshape({-1, 4}, "batch"), "S2");
  EXPECT_QUIET(reshape({0, 2, 4}, "batch"), "S2");
  EXPECT_QUIET(reshape({4, 4}, "2"), "S2");
}

TEST(LintShapes, S3Batch) {
  OnnxBuilder b(17);
  b.range("batch").input("x", {"batch", "8"}).node("Relu", {"x"}, {"y"}).output("y", {"batch", "8"});
  EXPECT_QUIET(lint(b, "ort-cpu"), "S3");
  b.node("ReduceSum", {"x"}, {"total"}).output("total", {"1"});
  EXPECT_THAT(message(lint(b, "ort-cpu"), "S3"), HasSubstr("total"));
}

TEST(LintShapes, S4ShapeNodes) {
  OnnxBuilder b = one_op("Relu");
  EXPECT_QUIET(lint(b, "trt10.9"), "S4");
  b.node("Shape", {"x"}, {"s"}).node("Shape", {"y"}, {"t"});
  EXPECT_THAT(message(lint(b, "trt10.9"), "S4"), HasSubstr("2 Shape"));
}

TEST(LintShapes, I1Integers) {
  auto slice = [](int64_t end, const char* target) {
    OnnxBuilder b = clean();
    b.i64("b", {0}).i64("e", {end}).node("Slice", {"x", "b", "e"}, {"y"});
    return lint(b, target);
  };
  EXPECT_FOUND(slice(INT64_MAX, "trt8.6"), "I1");
  EXPECT_QUIET(slice(INT64_MAX, "trt10.9"), "I1");
  EXPECT_QUIET(slice(INT32_MAX - 1, "trt8.6"), "I1");
}

TEST(LintShapes, I2Types) {
  auto cast = [](int64_t to) {
    OnnxBuilder b = clean();
    b.node("Cast", {"x"}, {"c"}).attr("to", to).node("Cast", {"c"}, {"y"}).attr("to", int64_t(Proto::FLOAT));
    return lint(b, "trt10.9");
  };
  EXPECT_EQ(count(cast(Proto::DOUBLE), "I2", LintSeverity::warning), 1);
  EXPECT_EQ(count(cast(Proto::UINT8), "I2", LintSeverity::error), 1);
  EXPECT_QUIET(cast(Proto::FLOAT16), "I2");
}

TEST(LintPrecision, P1Weights) {
  OnnxBuilder infinite = gemm(64, 64, Proto::FLOAT16);
  infinite.f16("w2", {64, 64}, 0x7c00).node("MatMul", {"x", "w2"}, {"z"});
  EXPECT_EQ(count(lint(infinite, "trt11.0"), "P1", LintSeverity::error), 1);
  OnnxBuilder denormal = gemm(64, 64, Proto::FLOAT16);
  denormal.f16("w2", {64, 64}, 0x0001).node("MatMul", {"x", "w2"}, {"z"});
  EXPECT_EQ(count(lint(denormal, "trt11.0"), "P1"), 1);
  EXPECT_QUIET(lint(gemm(64, 64, Proto::FLOAT16), "trt11.0"), "P1");
}

TEST(LintPrecision, P2Activations) {
  auto seen = [](const char* amax) { return lint(gemm(64, 64, Proto::FLOAT16).meta("xylem.amax.y", amax), "trt11.0"); };
  EXPECT_EQ(count(seen("70000"), "P2", LintSeverity::error), 1);
  EXPECT_EQ(count(seen("1000"), "P2", LintSeverity::warning), 1);
  EXPECT_QUIET(seen("100"), "P2");
}

TEST(LintPrecision, P3Masks) {
  auto mask = [](float value, uint16_t bits, bool half) {
    OnnxBuilder b(19, 9);
    int dtype = half ? Proto::FLOAT16 : Proto::FLOAT;
    b.input("x", {"4", "8"}, dtype);
    half ? b.f16("m", {8}, bits) : b.f32("m", {8}, value);
    b.node("Add", {"x", "m"}, {"s"}).node("Softmax", {"s"}, {"y"}).output("y", {"4", "8"}, dtype);
    return b;
  };
  EXPECT_EQ(count(lint(mask(0, 0xfc00, true), "trt11.0"), "P3", LintSeverity::error), 1);
  EXPECT_QUIET(lint(mask(0, 0xf0e2, true), "trt11.0"), "P3");  // -1e4
  EXPECT_EQ(count(lint(mask(-1e9f, 0, false), "trt10.9"), "P3", LintSeverity::warning), 1);
  EXPECT_QUIET(lint(mask(-1e9f, 0, false), "trt11.0"), "P3");
}

TEST(LintPrecision, P4Norms) {
  auto norm = [](int dtype) {
    OnnxBuilder b(17);
    b.input("x", {"4", "8"}, dtype)
        .node("ReduceMean", {"x"}, {"m"})
        .node("Sub", {"x", "m"}, {"d"})
        .node("Mul", {"d", "d"}, {"v"});
    dtype == Proto::FLOAT16 ? b.f16("eps", {}) : b.f32("eps", {});
    b.node("ReduceMean", {"v"}, {"var"}).node("Add", {"var", "eps"}, {"ve"}).node("Sqrt", {"ve"}, {"sd"});
    b.node("Div", {"d", "sd"}, {"y"}).output("y", {"4", "8"}, dtype);
    return lint(b, "trt10.9");
  };
  EXPECT_FOUND(norm(Proto::FLOAT16), "P4");
  EXPECT_QUIET(norm(Proto::FLOAT), "P4");
  OnnxBuilder stash = clean();
  stash.f32("g", {8}).node("LayerNormalization", {"x", "g"}, {"y"}).attr("stash_type", int64_t(Proto::FLOAT16));
  EXPECT_FOUND(lint(stash, "trt10.9"), "P4");
}

TEST(LintPrecision, P5AllFloat) {
  EXPECT_FOUND(lint(gemm(64, 64, Proto::FLOAT), "trt11.0"), "P5");
  EXPECT_QUIET(lint(gemm(64, 64, Proto::FLOAT), "trt10.9"), "P5");
  EXPECT_QUIET(lint(gemm(64, 64, Proto::FLOAT16), "trt11.0"), "P5");
}

TEST(LintFiles, F1ExternalData) {
  auto external = [](const std::string& location, const std::string& offset) {
    OnnxBuilder b = clean();
    b.f32("w", {16}).node("Add", {"x", "w"}, {"y"});
    auto& t = *b.graph.mutable_initializer(0);
    t.clear_raw_data();
    t.set_data_location(Proto::EXTERNAL);
    for (auto [k, v] :
         {std::pair<std::string, std::string>{"location", location}, {"offset", offset}, {"length", "64"}}) {
      auto& e = *t.add_external_data();
      e.set_key(k);
      e.set_value(v);
    }
    std::string path = b.save("ext");
    std::ofstream(std::filesystem::path(path).parent_path() / "w.bin", std::ios::binary) << std::string(8192, '\0');
    return lint_onnx(path, "trt10.9");
  };
  EXPECT_EQ(count(external("../w.bin", "0"), "F1", LintSeverity::error), 2);  // the name, and that it cannot be read
  EXPECT_EQ(count(external("w.bin", "64"), "F1", LintSeverity::warning), 1);
  EXPECT_QUIET(external("w.bin", "4096"), "F1");
}

TEST(LintFiles, F2SameContent) {
  auto two = [](float second) {
    OnnxBuilder b = clean();
    b.f32("a", {1024, 300}, 0.5f).f32("b", {1024, 300}, second).node("Relu", {"x"}, {"y"});
    return lint(b, "trt10.9");
  };
  EXPECT_FOUND(two(0.5f), "F2");
  EXPECT_QUIET(two(0.25f), "F2");
}

TEST(LintFiles, F3Names) {
  OnnxBuilder twice = clean();
  twice.node("Relu", {"x"}, {"a"}).node("Relu", {"a"}, {"y"});
  EXPECT_QUIET(lint(twice, "ort-cpu"), "F3");
  twice.last().set_name("/a/Relu");
  EXPECT_THAT(message(lint(twice, "ort-cpu"), "F3"), HasSubstr("two nodes have this name"));
  OnnxBuilder weight(17);
  weight.f32("w", {4}).output("w", {"4"});
  EXPECT_FOUND(lint(weight, "ort-cpu"), "F3");
  OnnxBuilder colon(17);
  colon.input("x:0", {"4"}).node("Relu", {"x:0"}, {"y"}).output("y", {"4"});
  EXPECT_FOUND(lint(colon, "trt10.9"), "F3");
}

TEST(Lint, TotalsAreThoseOfTheLayers) {
  LintReport r = lint(int8_matmul(32, 16, 16), "trt8.6");
  EXPECT_EQ(r.totals.at("macs"), 2 * 32 * 16);  // the middle of the range of `batch` is 2
  EXPECT_EQ(r.totals.at("macs_int8_percent"), 100);
  EXPECT_EQ(r.totals.at("weight_bytes"), 32 * 16 + 16 * 5 + 5);
  EXPECT_EQ(r.totals.at("conversions"), 0);
}

TEST(Lint, JsonHoldsTheFindings) {
  LintReport r = lint(quantized(0.1f, 3), "trt8.6");
  auto j = nlohmann::json::parse(r.json());
  ASSERT_EQ(j["findings"].size(), r.findings.size());
  EXPECT_EQ(j["findings"][0]["id"], r.findings[0].id);
  EXPECT_EQ(j["findings"][0]["severity"], "error");
  EXPECT_TRUE(j["totals"].contains("macs"));
  EXPECT_EQ(j.size(), 2u) << "findings and totals alone";
  for (const auto& finding : j["findings"]) {
    EXPECT_EQ(finding.size(), 4u) << finding;
    for (const char* key : {"id", "severity", "node", "message"}) EXPECT_TRUE(finding.contains(key)) << key;
  }
  EXPECT_TRUE(r.has(LintSeverity::error));
  EXPECT_FALSE(lint(one_op("Relu"), "trt8.6").has(LintSeverity::info));
}

// Whatever a file holds, the lint ends, and with findings or an Error alone.
TEST(Lint, MutatedModelsNeverCrashIt) {
  OnnxBuilder b = clean();
  b.conv_int8("x", "c", 16, 16).node("Relu", {"c"}, {"r"}).f32("w", {16, 16, 1, 1}).node("Conv", {"r", "w"}, {"d"});
  b.f32("p", {16}).node("BatchNormalization", {"d", "p", "p", "p", "p"}, {"e"}).node("Add", {"e", "x"}, {"y"});
  std::string path = b.save("fuzz"), good;
  b.model.SerializeToString(&good);
  uint64_t state = 7;
  auto random = [&](size_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return size_t(state >> 33) % n;
  };
  int read = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = good;
    for (size_t k = 0; k <= random(4); ++k) {
      size_t at = random(bytes.size());
      switch (random(3)) {
        case 0:
          bytes[at] = char(random(256));
          break;
        case 1:
          bytes.erase(at, 1 + random(8));
          break;
        default:
          bytes.insert(at, 1 + random(8), char(random(256)));
      }
    }
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      lint_onnx(path, i % 2 ? "trt10.9" : "ort-cpu");
      ++read;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace xylem::lint_tests
