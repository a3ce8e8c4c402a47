// SPDX-License-Identifier: Apache-2.0
#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

std::string waste(int64_t n, int64_t padded) { return std::to_string(100 - 100 * n / padded) + " %"; }

void channels(const Rules& r, const Weighted& w, bool& seen_conv) {
  bool first_conv = w.conv() && !seen_conv;
  seen_conv |= w.conv();
  if (w.groups > 1) return;  // depthwise kernels do not use Tensor Cores
  bool integer = w.integer();
  int64_t unit = integer ? 16 : 8;
  if (w.precision == "fp32") return;
  for (int64_t c : {w.in, w.out}) {
    if (c % unit == 0 || (first_conv && c == w.in && c <= 4)) continue;
    int64_t padded = round_up(c, unit);
    r.warning(integer ? "A2" : "A1", label(*w.node), c, " channels are not a multiple of ", unit, ": ", w.precision,
              " Tensor Core kernels pad to ", padded, ", ", waste(c, padded), " wasted. Use ", padded, ".");
    if (w.in == w.out) break;
  }
}

void last_layer(const Rules& r, const Weighted& w) {
  if (w.conv() || w.precision == "fp32" || w.out < 1024) return;
  std::string y = w.node->output(0);
  for (const Node* n = r.graph.only_consumer(y); n && (is(n, "Add") || is(n, "Cast")); n = r.graph.only_consumer(y))
    y = n->output(0);
  int64_t unit = w.integer() ? 16 : 8;
  if (r.graph.is_output(y) && w.out % unit != 0)
    r.info("A5", label(*w.node), "N = ", w.out, " is not a multiple of ", unit, "; pad the vocabulary to ",
           round_up(w.out, 64), ".");
}

// The product of the probabilities with the values, behind a Softmax; nullptr if there is none.
const Node* value_product(const Graph& g, const Node& softmax) {
  const Node* n = &softmax;
  for (int hops = 0; n && hops < 4; ++hops) {
    n = g.only_consumer(n->output(0));
    if (is(n, "MatMul")) return n;
    if (!is(n, "Cast") && !is(n, "QuantizeLinear") && !is(n, "DequantizeLinear") && !is(n, "Dropout")) return nullptr;
  }
  return nullptr;
}

void heads(const Rules& r, const Node& n) {
  std::string value, scores = n.op_type() == "Softmax" ? input(n, 0) : "";
  bool integer = false;
  if (n.op_type() == "Softmax") {
    const Node* product = value_product(r.graph, n);
    if (!product || r.graph.constant(input(*product, 1))) return;
    value = input(*product, 1);
    const Node* dq = r.graph.producer(value);
    integer = is(dq, "DequantizeLinear") && r.graph.type(input(*dq, 0)).dtype == onnx::TensorProto::INT8;
  } else if (n.op_type() == "Attention" && r.graph.rank(input(n, 2)) == 4) {
    value = input(n, 2);
  } else {
    return;
  }
  std::optional<int64_t> head = r.graph.size(value, -1);
  if (!head) return;
  if (integer) {
    std::optional<int64_t> length = r.graph.size(value, -2);
    if ((*head != 16 && *head != 32 && *head != 64) || length.value_or(0) > 512)
      r.warning("A4", label(n),
                "TensorRT's fused int8 attention needs heads of 16, 32 or 64 and at most 512 positions, not ", *head,
                length ? " and " + std::to_string(*length) : "", "; leave it in fp16.");
  } else if (*head % 8 != 0 || *head < 16 || *head > 256) {
    r.warning("A3", label(n), "a head size of ", *head,
              " blocks TensorRT's fused attention (it takes 16 to 256 in steps of 8); expect an unfused softmax.");
  }
}

}  // namespace

void check_alignment(const Rules& r) {
  if (!r.target.tensorrt) return;
  bool seen_conv = false;
  for (const Weighted& w : r.layers) {
    channels(r, w, seen_conv);
    last_layer(r, w);
  }
  for (const Node* n : r.graph.nodes()) heads(r, *n);
}

}  // namespace xylem::lint
