// SPDX-License-Identifier: Apache-2.0
// The lint's rules of quantized models and of what TensorRT's parser takes.
#include "tests/models/lint_models.h"

namespace xylem::lint_tests {
namespace {

TEST(LintQuantization, Q1ZeroPoint) {
  EXPECT_FOUND(lint(quantized(0.1f, 3), "trt8.6"), "Q1");
  EXPECT_QUIET(lint(quantized(0.1f, 3), "ort-cpu"), "Q1");
  EXPECT_QUIET(lint(quantized(0.1f, 0), "trt8.6"), "Q1");
  OnnxBuilder u8 = clean();
  u8.f32("s", {}, 0.1f).u8("z", {}, 0).qdq("x", "y", "s", "z");
  EXPECT_FOUND(lint(u8, "trt8.6"), "Q1");
}

TEST(LintQuantization, Q2Scale) {
  EXPECT_THAT(message(lint(quantized(0, 0), "trt8.6"), "Q2"), HasSubstr("dead channel"));
  EXPECT_FOUND(lint(quantized(-1, 0), "ort-cpu"), "Q2");
  EXPECT_FOUND(lint(quantized(std::nanf(""), 0), "trt8.6"), "Q2");
  EXPECT_FOUND(lint(quantized(1e-40f, 0), "trt8.6"), "Q2");
  EXPECT_QUIET(lint(quantized(0.1f, 0), "trt8.6"), "Q2");
}

TEST(LintQuantization, Q3OneScale) {
  // One channel of 16 has ten times the range: 10 log10(100^2 / ((100^2 + 15 * 10^2) / 16)) = 11.4 dB.
  EXPECT_THAT(message(lint(int8_matmul(32, 16, 1), "trt8.6"), "Q3"), HasSubstr("11.4 dB"));
  EXPECT_QUIET(lint(int8_matmul(32, 16, 16), "trt8.6"), "Q3");
}

TEST(LintQuantization, Q4Axis) {
  OnnxBuilder b = clean();
  b.f32("s", {16}, 0.1f).i8("z", {16}).qdq("x", "y", "s", "z");
  EXPECT_THAT(message(lint(b, "trt8.6"), "Q4"), HasSubstr("activation"));
  EXPECT_THAT(message(lint(int8_matmul(32, 16, 8), "trt8.6"), "Q4"), HasSubstr("8 scales along axis 1, which has 16"));
  EXPECT_QUIET(lint(int8_matmul(32, 16, 16), "trt8.6"), "Q4");
}

// TensorRT#1934
TEST(LintQuantization, Q4TransposedConvolutionsInGroups) {
  auto deconv = [](int64_t groups, std::vector<int64_t> scales) {
    OnnxBuilder b = clean();
    b.i8("w", {16, 16 / groups, 3, 3}, 5).f32("ws", scales, 0.1f).i8("wz", scales).f32("s", {}, 0.1f).i8("z", {});
    b.qdq("x", "xd", "s", "z").node("DequantizeLinear", {"w", "ws", "wz"}, {"wd"});
    if (!scales.empty()) b.attr("axis", int64_t(1));
    b.node("ConvTranspose", {"xd", "wd"}, {"y"}).ints("pads", {1, 1, 1, 1}).attr("group", groups);
    return b;
  };
  EXPECT_THAT(message(lint(deconv(4, {4}), "trt8.6"), "Q4"), HasSubstr("in 4 groups"));
  EXPECT_QUIET(lint(deconv(4, {}), "trt8.6"), "Q4");
  EXPECT_QUIET(lint(deconv(1, {16}), "trt8.6"), "Q4");
  EXPECT_QUIET(lint(deconv(4, {4}), "ort-cpu"), "Q4");
}

// conv + skip, with Q/DQ on the skip, on the convolution's output, on both or on neither.
LintReport residual(bool on_skip, bool on_conv, const char* target) {
  OnnxBuilder b = clean();
  b.conv_int8("x", "c", 16, 16);
  std::string conv = "c", skip = "x";
  if (on_conv) b.qdq("c", conv = "cd", "c.s", "c.z");
  if (on_skip) b.qdq("x", skip = "xd", "c.s", "c.z");
  b.node("Add", {conv, skip}, {"y"});
  return lint(b, target);
}

TEST(LintQuantization, Q5Residual) {
  EXPECT_THAT(message(residual(false, false, "trt8.6"), "Q5"), HasSubstr("skip branch is not quantized"));
  EXPECT_THAT(message(residual(true, true, "trt8.6"), "Q5"), HasSubstr("between a convolution and the addition"));
  EXPECT_QUIET(residual(true, false, "trt8.6"), "Q5");
  EXPECT_FOUND(residual(true, false, "ort-cpu"), "Q5");
  EXPECT_QUIET(residual(true, true, "ort-cpu"), "Q5");
}

TEST(LintQuantization, Q6IslandsAndSmallLayers) {
  auto three = [](bool middle) {
    OnnxBuilder b = clean();
    b.conv_int8("x", "a", 16, 16);
    middle ? b.conv_int8("a", "m", 16, 16) : b.f32("mw", {16, 16, 1, 1}).node("Conv", {"a", "mw"}, {"m"});
    b.conv_int8("m", "y", 16, 16);
    return lint(b, "trt8.6");
  };
  EXPECT_THAT(message(three(false), "Q6"), HasSubstr("between quantized layers"));
  EXPECT_QUIET(three(true), "Q6");
  EXPECT_THAT(message(lint(int8_matmul(8, 16, 16), "trt8.6"), "Q6"), HasSubstr("too small"));
}

TEST(LintQuantization, Q7BatchNorm) {
  auto norm = [](bool training) {
    OnnxBuilder b = clean();
    b.f32("p", {16}).f32("w", {16, 16, 1, 1}).node("Conv", {"x", "w"}, {"c"});
    b.node("BatchNormalization", {"c", "p", "p", "p", "p"}, {"y"}).attr("training_mode", int64_t(training));
    return lint(b, "trt8.6");
  };
  EXPECT_EQ(count(norm(false), "Q7", LintSeverity::warning), 1);
  EXPECT_EQ(count(norm(true), "Q7", LintSeverity::error), 1);
  EXPECT_QUIET(lint(one_op("Relu"), "trt8.6"), "Q7");
}

TEST(LintQuantization, Q8Misplaced) {
  OnnxBuilder bias = clean();
  bias.f32("s", {}, 0.1f).i8("z", {}).i8("b", {16}).f32("w", {16, 16, 1, 1});
  bias.node("DequantizeLinear", {"b", "s", "z"}, {"bd"}).node("Conv", {"x", "w", "bd"}, {"y"});
  EXPECT_THAT(message(lint(bias, "trt8.6"), "Q8"), HasSubstr("bias"));
  OnnxBuilder softmax = clean();
  softmax.f32("s", {}, 0.1f).i8("z", {}).node("Softmax", {"x"}, {"p"}).qdq("p", "y", "s", "z");
  EXPECT_THAT(message(lint(softmax, "trt8.6"), "Q8"), HasSubstr("Softmax"));
  OnnxBuilder cast(17);
  cast.input("x", {"4", "16"}, Proto::FLOAT16).i8("w", {16, 16}).f32("s", {}, 0.1f).i8("z", {});
  cast.node("DequantizeLinear", {"w", "s", "z"}, {"wd"})
      .node("Cast", {"wd"}, {"wh"})
      .attr("to", int64_t(Proto::FLOAT16));
  cast.node("MatMul", {"x", "wh"}, {"y"}).output("y", {"4", "16"}, Proto::FLOAT16);
  EXPECT_THAT(message(lint(cast, "trt10.9"), "Q8"), HasSubstr("Cast"));
  EXPECT_QUIET(lint(int8_matmul(32, 16, 16), "trt8.6"), "Q8");
}

TEST(LintQuantization, Q9HalfCarriers) {
  auto half = [](int opset) {
    OnnxBuilder b(opset, opset >= 19 ? 9 : 8);
    b.input("x", {"4", "16"}, Proto::FLOAT16).f16("s", {}).i8("z", {}).qdq("x", "y", "s", "z");
    b.output("y", {"4", "16"}, Proto::FLOAT16);
    return lint(b, "trt10.9");
  };
  EXPECT_FOUND(half(17), "Q9");
  EXPECT_QUIET(half(19), "Q9");
}

TEST(LintQuantization, Q10Concat) {
  auto concat = [](float second) {
    OnnxBuilder b = clean();
    b.f32("s", {}, 0.1f).f32("t", {}, second).i8("z", {}).qdq("x", "a", "s", "z").qdq("x", "b", "t", "z");
    b.node("Concat", {"a", "b"}, {"y"}).attr("axis", int64_t(1));
    return lint(b, "trt8.6");
  };
  EXPECT_FOUND(concat(0.2f), "Q10");
  EXPECT_QUIET(concat(0.1f), "Q10");
}

TEST(LintQuantization, Q11OnnxRuntime) {
  OnnxBuilder b = clean();
  b.f32("s", {}, 0.1f).i8("z", {}).node("Relu", {"x"}, {"r"}).qdq("r", "y", "s", "z");
  EXPECT_FOUND(lint(b, "ort-cpu"), "Q11");
  EXPECT_QUIET(lint(b, "trt8.6"), "Q11");
  OnnxBuilder u = clean();
  u.f32("s", {}, 0.1f).u8("z", {}).node("Relu", {"x"}, {"r"}).qdq("r", "y", "s", "z");
  EXPECT_QUIET(lint(u, "ort-cpu"), "Q11");
}

TEST(LintStructure, R1ScaleIsConstant) {
  OnnxBuilder b = clean();
  b.input("s", {}).i8("z", {}).qdq("x", "y", "s", "z");
  EXPECT_FOUND(lint(b, "trt8.6"), "R1");
  EXPECT_QUIET(lint(quantized(0.1f, 0), "trt8.6"), "R1");
}

TEST(LintStructure, R2ZeroPoint) {
  OnnxBuilder b = clean();
  b.f32("s", {}, 0.1f).node("QuantizeLinear", {"x", "s"}, {"q"}).node("DequantizeLinear", {"q", "s"}, {"y"});
  EXPECT_FOUND(lint(b, "trt8.6"), "R2");
  EXPECT_QUIET(lint(quantized(0.1f, 0), "trt8.6"), "R2");
}

TEST(LintStructure, R4PackedInt4) {
  auto packed = [](int64_t last) {
    OnnxBuilder b(21, 10);
    b.raw("w", {2, last}, Proto::INT4, std::vector<uint8_t>(size_t(last))).f32("s", {2}, 0.1f);
    b.node("DequantizeLinear", {"w", "s"}, {"y"}).attr("axis", int64_t(0)).output("y", {"2", std::to_string(last)});
    return lint(b, "trt10.9");
  };
  EXPECT_FOUND(packed(7), "R4");
  EXPECT_QUIET(packed(8), "R4");
}

TEST(LintStructure, R5Scalars) {
  OnnxBuilder b(17);
  b.input("x", {}).f32("s", {}, 0.1f).i8("z", {}).qdq("x", "y", "s", "z").output("y", {});
  EXPECT_FOUND(lint(b, "trt8.6"), "R5");
  EXPECT_QUIET(lint(quantized(0.1f, 0), "trt8.6"), "R5");
}

TEST(LintStructure, R6ScaleType) {
  OnnxBuilder b(19, 9);
  b.input("x", {"4", "16"}, Proto::FLOAT16)
      .f32("s", {}, 0.1f)
      .i8("z", {})
      .qdq("x", "y", "s", "z")
      .output("y", {"4", "16"});
  EXPECT_FOUND(lint(b, "trt10.9"), "R6");
  EXPECT_QUIET(lint(quantized(0.1f, 0, 19), "trt10.9"), "R6");
}

TEST(LintStructure, R8BatchNormInputs) {
  OnnxBuilder b = clean();
  b.input("g", {"16"}).f32("p", {16}).node("BatchNormalization", {"x", "g", "p", "p", "p"}, {"y"});
  EXPECT_FOUND(lint(b, "trt8.6"), "R8");
  OnnxBuilder good = clean();
  good.f32("p", {16}).node("BatchNormalization", {"x", "p", "p", "p", "p"}, {"y"});
  EXPECT_QUIET(lint(good, "trt8.6"), "R8");
}

TEST(LintStructure, R9TransposedConvolution) {
  auto deconv = [](int64_t pad) {
    OnnxBuilder b = clean();
    b.f32("w", {16, 16, 3, 3}).node("ConvTranspose", {"x", "w"}, {"y"}).ints("pads", {pad, pad, pad, pad});
    return lint(b, "trt8.6");
  };
  EXPECT_FOUND(deconv(-1), "R9");
  EXPECT_QUIET(deconv(1), "R9");
}

TEST(LintStructure, R10Domains) {
  OnnxBuilder b = one_op("Relu");
  EXPECT_QUIET(lint(b, "trt8.6"), "R10");
  b.last().set_domain("com.example");
  EXPECT_THAT(message(lint(b, "trt8.6"), "R10"), HasSubstr("com.example::Relu"));
}

}  // namespace
}  // namespace xylem::lint_tests
