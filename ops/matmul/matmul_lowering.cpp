// SPDX-License-Identifier: Apache-2.0
#include "ops/matmul/matmul_lowering.h"

namespace xylem {

OnnxNames lower_matmul(OnnxBuilder& onnx, const ExportedOp& op) {
  return {onnx.node("MatMul", {op.inputs[0], op.inputs[1]})};
}

// Gemm for matrices; x [.., in] otherwise times the transposed weight. Where a bias in floating point would keep a
// quantized Gemm from becoming one of integers, it is added behind.
OnnxNames lower_linear(OnnxBuilder& onnx, const ExportedOp& op) {
  const std::string &x = op.inputs[0], &weight = op.inputs[1], &bias = op.inputs[2];
  if (op.rank(0) == 2) {
    OnnxNames in{x, weight};
    if (!bias.empty() && onnx.target().integer_gemm && onnx.producer(x).op == "DequantizeLinear")
      return {onnx.node("Add", {onnx.node("Gemm", in, {{"transB", int64_t(1)}}), bias})};
    if (!bias.empty()) in.push_back(bias);
    return {onnx.node("Gemm", in, {{"transB", int64_t(1)}})};
  }
  std::string y = onnx.node("MatMul", {x, onnx.transpose(weight, {1, 0})});
  return {bias.empty() ? y : onnx.node("Add", {y, bias})};
}

}  // namespace xylem
