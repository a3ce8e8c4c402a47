// SPDX-License-Identifier: Apache-2.0
// What the lint's tests share: models that are clean, to be spoilt, and how findings are counted.
#pragma once
#include <gmock/gmock.h>

#include <string>

#include "models/export/lint/lint.h"
#include "tests/models/onnx_builder.h"

namespace xylem::lint_tests {

using xylem::testing::OnnxBuilder;
using Proto = OnnxBuilder::Proto;
using ::testing::HasSubstr;

inline LintReport lint(const OnnxBuilder& b, const std::string& target) {
  static int counter = 0;
  return lint_onnx(b.save("m" + std::to_string(counter++)), target);
}

inline int count(const LintReport& r, const std::string& id, LintSeverity at_least = LintSeverity::info) {
  int n = 0;
  for (const LintFinding& f : r.findings) n += f.id == id && f.severity >= at_least;
  return n;
}

inline std::string message(const LintReport& r, const std::string& id) {
  for (const LintFinding& f : r.findings)
    if (f.id == id) return f.node + ": " + f.message;
  return "";
}

#define EXPECT_FOUND(report, id) EXPECT_GE(count(report, id), 1) << (report).text()
#define EXPECT_QUIET(report, id) EXPECT_EQ(count(report, id), 0) << (report).text()

// x [batch, 16, 8, 8] -> y, clean for every target.
inline OnnxBuilder clean(int opset = 17, int ir = 8) {
  OnnxBuilder b(opset, ir);
  b.range("batch").input("x", {"batch", "16", "8", "8"}).output("y", {"batch", "16", "8", "8"});
  return b;
}
inline OnnxBuilder one_op(const std::string& op, int opset = 17) {
  OnnxBuilder b = clean(opset, opset >= 23 ? 11 : opset >= 21 ? 10 : opset >= 19 ? 9 : 8);
  b.node(op, {"x"}, {"y"});
  return b;
}
// Two matrices, [batch, in] -> [batch, out], in a 16-bit or 32-bit type.
inline OnnxBuilder gemm(int64_t in, int64_t out, int dtype) {
  OnnxBuilder b(19, 9);
  b.range("batch").input("x", {"batch", std::to_string(in)}, dtype).output("y", {"batch", std::to_string(out)}, dtype);
  dtype == Proto::FLOAT16 ? b.f16("w", {in, out}) : b.f32("w", {in, out});
  b.node("MatMul", {"x", "w"}, {"y"});
  return b;
}
// x -> Q -> DQ -> y.
inline OnnxBuilder quantized(float scale, int8_t zero, int opset = 17) {
  OnnxBuilder b = clean(opset, opset >= 19 ? 9 : 8);
  b.f32("s", {}, scale).i8("z", {}, zero).qdq("x", "y", "s", "z");
  return b;
}
// A MatMul whose weight is stored in int8 with `scales` scales.
inline OnnxBuilder int8_matmul(int64_t in, int64_t out, int64_t scales) {
  OnnxBuilder b(17);
  b.range("batch").input("x", {"batch", std::to_string(in)}).f32("s", {}, 0.1f).i8("z", {}).qdq("x", "xd", "s", "z");
  std::vector<int8_t> w(size_t(in * out));
  for (size_t i = 0; i < w.size(); ++i) w[i] = int8_t(i % size_t(out) ? 10 : 100);
  b.raw("w", {in, out}, Proto::INT8, w);
  scales > 1 ? b.f32("ws", {scales}, 0.1f) : b.f32("ws", {}, 0.1f);
  scales > 1 ? b.i8("wz", {scales}) : b.i8("wz", {});
  b.node("DequantizeLinear", {"w", "ws", "wz"}, {"wd"}).attr("axis", int64_t(1));
  b.node("MatMul", {"xd", "wd"}, {"y"}).output("y", {"batch", std::to_string(out)});
  return b;
}

}  // namespace xylem::lint_tests
