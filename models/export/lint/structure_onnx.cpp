// SPDX-License-Identifier: Apache-2.0
// What TensorRT's ONNX importer insists on before it looks at any operator.
#include <cmath>

#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

using onnx::TensorProto;

void scales(const Rules& r, const Node& n) {
  const Graph& g = r.graph;
  if (n.input_size() < 2) {
    r.error("R1", label(n), n.op_type(), " needs a scale.");
    return;
  }
  const TensorProto* scale = g.constant(input(n, 1));
  if (!scale || numel(*scale) == 0) {
    r.error("R1", label(n), "the scale must be a constant with at least one value.");
    return;
  }
  if (g.rank(input(n, 0)) == 0) r.error("R5", label(n), n.op_type(), " of a scalar is not supported.");
  bool quantize = is(&n, "QuantizeLinear");
  if (quantize && input(n, 2).empty() && !attribute(n, "output_dtype", 0))
    r.warning("R2", label(n), "no zero point: ONNX takes the output for uint8, TensorRT for int8. Write an int8 zero.");
  if (const TensorProto* zero = g.constant(input(n, 2)); zero && numel(*zero) != numel(*scale))
    r.error("R2", label(n), "the zero point has ", numel(*zero), " values and the scale ", numel(*scale), ".");
  int x = g.type(input(n, 0)).dtype, s = g.type(input(n, 1)).dtype;
  if (quantize && g.opset >= 19 && x && s && x != s)
    r.error("R6", label(n), "the scale is ", dtype_name(s), " and the input ", dtype_name(x),
            "; from opset 19 on they must agree.");
  int stored = g.type(quantize ? n.output(0) : input(n, 0)).dtype;
  if ((stored == TensorProto::INT4 || stored == TensorProto::UINT4))
    if (auto last = g.size(input(n, 0), -1); last && *last % 2)
      r.error("R4", label(n), "int4 needs an even last dimension, not ", *last, ".");
}

void convolution(const Rules& r, const Node& n) {
  for (int64_t pad : attribute_ints(n, "pads"))
    if (pad < 0 && is(&n, "ConvTranspose")) {
      r.error("R9", label(n), "negative padding (", pad, ") is not supported; crop with Slice.");
      break;
    }
  if (int rank = r.graph.rank(input(n, 0)); rank > 0 && (rank < 3 || rank > 5))
    r.error("R9", label(n), "the input must have 3 to 5 dimensions, not ", rank, ".");
}

void batch_norm(const Rules& r, const Node& n) {
  for (int i = 1; i < 5; ++i)
    if (const TensorProto* t = r.graph.constant(input(n, i)); !t || t->dims_size() != 1) {
      r.warning("R8", label(n), "input ", i, " is no one-dimensional constant: TensorRT falls back to a slow form.");
      return;
    }
}

}  // namespace

void check_structure(const Rules& r) {
  if (!r.target.tensorrt) return;
  if (r.graph.opset < 7) r.error("R10", "model", "opset ", r.graph.opset, " is too old: TensorRT reads 7 and later.");
  for (const Node* n : r.graph.nodes()) {
    bool local = false;
    for (const auto& f : r.graph.model.functions()) local |= f.name() == n->op_type() && f.domain() == n->domain();
    if (!n->domain().empty() && n->domain() != "ai.onnx" && !local && !n->op_type().starts_with("TRT_"))
      r.error("R10", label(*n), "operator ", n->domain(), "::", n->op_type(),
              " is not of the ONNX domain; TensorRT needs a plugin.");
    if (is(n, "QuantizeLinear") || is(n, "DequantizeLinear")) scales(r, *n);
    if (is(n, "Conv") || is(n, "ConvTranspose")) convolution(r, *n);
    if (is(n, "BatchNormalization")) batch_norm(r, *n);
  }
}

}  // namespace xylem::lint
