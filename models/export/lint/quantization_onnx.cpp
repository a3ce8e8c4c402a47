// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

using onnx::TensorProto;

bool quantizes(const Node* n) { return is(n, "QuantizeLinear"); }
bool dequantizes(const Node* n) { return is(n, "DequantizeLinear"); }

// Q1, Q2, Q4, Q9: one QuantizeLinear or DequantizeLinear by itself.
void parameters(const Rules& r, const Node& n) {
  const Graph& g = r.graph;
  const TensorProto* scale = g.constant(input(n, 1));
  const TensorProto* zero = g.constant(input(n, 2));
  bool integer_bias = dequantizes(&n) && g.type(input(n, 0)).dtype == TensorProto::INT32;
  if (r.target.tensorrt) {
    if (zero) {
      for (float z : g.values(*zero))
        if (z != 0) {
          r.error("Q1", label(n), "zero point ", z, ": TensorRT quantizes symmetrically. Export with zero point 0.");
          break;
        }
      if (zero->data_type() == TensorProto::UINT8)
        r.error("Q1", label(n), "uint8: TensorRT quantizes to int8. Export for a trt profile.");
    }
    if (integer_bias)
      r.error("Q8", label(n), "an int32 bias with DequantizeLinear is refused by TensorRT; keep the bias in float.");
  }
  if (scale) {
    std::vector<float> s = g.values(*scale);
    for (size_t k = 0; k < s.size(); ++k) {
      if (s[k] > 0 && std::isfinite(s[k]) && std::fpclassify(s[k]) != FP_SUBNORMAL &&
          !(scale->data_type() == TensorProto::FLOAT16 && s[k] < 6.1035e-5f))
        continue;
      r.error("Q2", label(n), "channel ", k, ": scale ", s[k],
              s[k] == 0 ? " (a dead channel?): set the scale to 1 and the weights to 0."
                        : ": it must be a positive normal number.");
      break;
    }
    bool blocked = attribute(n, "block_size", 0) > 0;
    if (s.size() > 1 && !blocked) {
      int64_t axis = attribute(n, "axis", 1);
      std::optional<int64_t> size = g.size(input(n, 0), int(axis));
      if (!g.constant(input(n, 0)) && !quantizes(g.producer(input(n, 0))))
        r.error("Q4", label(n), "a scale per channel on an activation is not supported; use one scale.");
      else if (size && *size != int64_t(s.size()))
        r.error("Q4", label(n), s.size(), " scales along axis ", axis, ", which has ", *size, " entries.");
    }
  }
  if (quantizes(&n) && g.opset < 19)
    if (int x = g.type(input(n, 0)).dtype; x == TensorProto::FLOAT16 || x == TensorProto::BFLOAT16)
      r.error("Q9", label(n), "QuantizeLinear of ", dtype_name(x), " needs opset 19 (this model has ", g.opset, ").");
}

// How many decibels of signal to noise one scale per channel would win, by the uniform noise model step^2 / 12.
double per_channel_gain(const Rules& r, const Weighted& w) {
  std::vector<float> v = r.graph.values(*w.weight);
  if (v.empty()) return 0;
  bool out_first = w.node->op_type() == "Conv" || attribute(*w.node, "transB", 0) != 0;
  int64_t channels = w.weight->dims(out_first ? 0 : w.weight->dims_size() - 1);
  std::vector<double> amax(static_cast<size_t>(channels), 0.0);
  for (size_t i = 0; i < v.size(); ++i) {
    size_t c = out_first ? i / (v.size() / amax.size()) : i % amax.size();
    amax[c] = std::max(amax[c], double(std::abs(v[i])));
  }
  double whole = *std::max_element(amax.begin(), amax.end()), mean = 0;
  for (double a : amax) mean += a * a / double(channels);
  return mean > 0 ? 10 * std::log10(whole * whole / mean) : 0;
}

// Q3, Q6: too small to gain anything.
void layer(const Rules& r, const Weighted& w) {
  if (w.weight_dq && w.node->op_type() != "ConvTranspose" && w.out > 1 && attribute(*w.weight_dq, "block_size", 0) == 0)
    if (const TensorProto* s = r.graph.constant(input(*w.weight_dq, 1)); s && numel(*s) == 1)
      r.warning("Q3", label(*w.node), "one scale for all ", w.out, " channels of the weight; one per channel would be ",
                std::round(10 * per_channel_gain(r, w)) / 10, " dB better.");
  if (r.target.tensorrt && w.weight_dq && w.node->op_type() == "ConvTranspose" && w.groups > 1)
    if (const TensorProto* s = r.graph.constant(input(*w.weight_dq, 1)); s && numel(*s) > 1)
      r.error("Q4", label(*w.node), "a transposed convolution in ", w.groups,
              " groups with a scale per channel is refused by TensorRT; use one scale.");
  if (!r.target.tensorrt || w.precision != "int8") return;
  bool small = w.conv() ? w.groups == 1 && (w.out < 16 || w.in < 16) && !(w.out % 8 == 0 && w.in % 8 == 0) && w.in > 4
                        : w.in < 16 || w.out < 16;
  if (small)
    r.warning("Q6", label(*w.node), "too small for int8 (", w.in, " -> ", w.out,
              " channels); leave it in floating point.");
}

// Whether `tensor` is the dequantized output of a convolution, with nothing in between.
const Node* quantized_conv(const Graph& g, const std::string& tensor) {
  const Node* dq = g.producer(tensor);
  if (!dequantizes(dq)) return nullptr;
  const Node* q = g.producer(input(*dq, 0));
  if (!quantizes(q)) return nullptr;
  const Node* conv = g.producer(input(*q, 0));
  return is(conv, "Conv") ? conv : nullptr;
}

// Q5: the residual addition. TensorRT fuses Conv + Add + ReLU when the skip branch alone is quantized; ONNX Runtime
// wants both.
void residual(const Rules& r, const Node& add) {
  const Graph& g = r.graph;
  if (add.input_size() != 2 || g.constant(add.input(0)) || g.constant(add.input(1))) return;
  const Node *a = g.producer(add.input(0)), *b = g.producer(add.input(1));
  auto int8_conv = [&](const Node* n) {
    for (const Weighted& w : r.layers)
      if (w.node == n) return w.conv() && w.precision == "int8";
    return false;
  };
  if (!r.target.tensorrt) {
    if (dequantizes(a) != dequantizes(b))
      r.warning("Q5", label(add),
                "one input is quantized and the other is not: ONNX Runtime adds in float. Quantize both.");
    return;
  }
  if (int8_conv(a) && int8_conv(b))
    r.warning("Q5", label(add),
              "neither branch is quantized: put a Q/DQ pair on the skip branch (int8 Conv + Add + ReLU fusion).");
  else if ((int8_conv(a) && !dequantizes(b)) || (int8_conv(b) && !dequantizes(a)))
    r.warning("Q5", label(add),
              "the skip branch is not quantized: put a Q/DQ pair on it (int8 Conv + Add + ReLU fusion).");
  else if (dequantizes(a) && dequantizes(b) && (quantized_conv(g, add.input(0)) || quantized_conv(g, add.input(1))))
    r.warning("Q5", label(add),
              "a Q/DQ pair stands between a convolution and the addition: keep it on the skip branch alone.");
}

// The weighted layers next to `from` in one direction, through whatever lies between.
void neighbours(const Graph& g, const std::set<const Node*>& weighted, const Node& from, bool forward,
                std::set<const Node*>& out, int depth = 0) {
  if (depth > 12) return;
  auto visit = [&](const Node* n) {
    if (!n) return;
    if (weighted.contains(n))
      out.insert(n);
    else
      neighbours(g, weighted, *n, forward, out, depth + 1);
  };
  if (forward)
    for (const auto& o : from.output())
      for (const Node* n : g.consumers(o)) visit(n);
  else
    visit(g.producer(input(from, 0)));
}

// Q6: a layer in floating point between integer ones.
void islands(const Rules& r) {
  std::set<const Node*> all, integer;
  for (const Weighted& w : r.layers) {
    all.insert(w.node);
    if (w.integer()) integer.insert(w.node);
  }
  if (integer.empty()) return;
  for (const Weighted& w : r.layers) {
    if (w.integer() || (!w.conv() && (w.in < 16 || w.out < 16))) continue;
    std::set<const Node*> before, after;
    neighbours(r.graph, all, *w.node, false, before);
    neighbours(r.graph, all, *w.node, true, after);
    auto is_integer = [&](const Node* n) { return integer.contains(n); };
    if (!before.empty() && !after.empty() && std::all_of(before.begin(), before.end(), is_integer) &&
        std::all_of(after.begin(), after.end(), is_integer))
      r.warning("Q6", label(*w.node), "in ", w.precision, " between quantized layers: it costs ", 1 + after.size(),
                " conversions. Quantize it too.");
  }
}

// Q7
void batch_norm(const Rules& r, const Node& n) {
  if (attribute(n, "training_mode", 0)) {
    r.error("Q7", label(n), "BatchNormalization in training mode. Export the model in evaluation mode.");
    return;
  }
  const Node* p = r.graph.producer(input(n, 0));
  bool shared = p && p->output_size() && !r.graph.only_consumer(p->output(0));
  std::string why = !is(p, "Conv") && !is(p, "ConvTranspose") && !is(p, "Gemm") ? "it does not follow a convolution"
                    : shared ? "the convolution's output is used elsewhere too"
                             : "the exporter left it";
  r.warning("Q7", label(n), "BatchNormalization is not folded (", why, ").");
}

// Q8: pairs that keep kernels from fusing.
void misplaced(const Rules& r, const Node& n) {
  const Graph& g = r.graph;
  if ((is(&n, "Conv") || is(&n, "Gemm") || is(&n, "ConvTranspose")) && r.target.tensorrt &&
      dequantizes(g.producer(input(n, 2))) && g.type(input(*g.producer(input(n, 2)), 0)).dtype != TensorProto::INT32)
    r.warning("Q8", label(n), "the bias is quantized: TensorRT keeps it in float. Remove its Q/DQ pair.");
  if (is(&n, "Cast") && dequantizes(g.producer(input(n, 0))))
    for (const Node* c : g.consumers(n.output(0)))
      if (is(c, "MatMul") || is(c, "Conv") || is(c, "Gemm"))
        r.warning("Q8", label(n), "a Cast between DequantizeLinear and ", label(*c),
                  " keeps them from fusing: write the scale in the type "
                  "of the computation.");
  if (quantizes(&n) && r.target.tensorrt) {
    const Node* p = g.producer(input(n, 0));
    bool fp8 = g.type(n.output(0)).dtype == TensorProto::FLOAT8E4M3FN;
    if ((is(p, "Softmax") && !fp8) || is(p, "LayerNormalization") || is(p, "RMSNormalization")) {
      bool feeds_weights = false;  // the input of a following layer is where a pair belongs
      for (const Node* dq : g.consumers(n.output(0)))
        for (const auto& o : dq->output())
          for (const Node* c : g.consumers(o))
            for (const Weighted& w : r.layers) feeds_weights |= w.node == c;
      if (is(p, "Softmax") || !feeds_weights)
        r.warning("Q8", label(n), "quantizes the output of ", p->op_type(), ": leave it in floating point.");
    }
  }
}

// Q10
void concatenation(const Rules& r, const Node& n) {
  std::vector<float> scales;
  for (const auto& i : n.input()) {
    const Node* dq = r.graph.producer(i);
    if (!dequantizes(dq)) return;
    const TensorProto* s = r.graph.constant(input(*dq, 1));
    std::vector<float> v = s ? r.graph.values(*s) : std::vector<float>();
    if (v.size() != 1) return;
    scales.push_back(v[0]);
  }
  for (float s : scales)
    if (s != scales[0]) {
      r.info("Q10", label(n), "inputs with scales ", scales[0], " and ", s, ": a common scale avoids requantization.");
      return;
    }
}

// Q11: what ONNX Runtime on a CPU does not fuse, or computes wrongly.
void onnx_runtime(const Rules& r, const Node& n) {
  if (!quantizes(&n) || !is(r.graph.producer(input(n, 0)), "Relu")) return;
  if (r.graph.type(n.output(0)).dtype == TensorProto::INT8)
    r.warning("Q11", label(n),
              "int8 behind Relu is not fused and runs in float on ONNX Runtime's CPU: use uint8 with zero point 0 "
              "(profile ort-cpu).");
}

}  // namespace

void check_quantization(const Rules& r) {
  for (const Node* n : r.graph.nodes()) {
    if (quantizes(n) || dequantizes(n)) parameters(r, *n);
    if (is(n, "Add")) residual(r, *n);
    if (is(n, "BatchNormalization")) batch_norm(r, *n);
    if (is(n, "Concat")) concatenation(r, *n);
    misplaced(r, *n);
    if (!r.target.tensorrt) onnx_runtime(r, *n);
  }
  for (const Weighted& w : r.layers) layer(r, w);
  islands(r);
  if (r.target.tensorrt) return;
  for (const Weighted& w : r.layers) {
    if (w.precision != "int8" || r.graph.type(input(*w.input_dq, 0)).dtype != TensorProto::UINT8) continue;
    std::vector<float> v = r.graph.values(*w.weight);
    if (w.weight->data_type() == TensorProto::INT8 &&
        std::any_of(v.begin(), v.end(), [](float q) { return std::abs(q) > 64; })) {
      r.info("Q11", "model",
             "uint8 activations with full-range int8 weights saturate on CPUs without VNNI: set the session option "
             "session.x64quantprecision=1 there.");
      break;
    }
  }
}

}  // namespace xylem::lint
