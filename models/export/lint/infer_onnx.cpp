// SPDX-License-Identifier: Apache-2.0
// Types and shapes of the operators that networks are made of, for files that do not state them. What is not known
// stays unknown: a rule that needs it says nothing.
#include <algorithm>
#include <set>

#include "models/export/lint/graph_onnx.h"

namespace xylem::lint {
namespace {

using onnx::TensorProto;
using Dims = std::optional<std::vector<Dim>>;

const std::set<std::string> kSameAsFirst = {"Relu",
                                            "LeakyRelu",
                                            "Sigmoid",
                                            "Tanh",
                                            "Gelu",
                                            "Swish",
                                            "Mish",
                                            "Elu",
                                            "Selu",
                                            "Celu",
                                            "Softplus",
                                            "Softsign",
                                            "HardSigmoid",
                                            "HardSwish",
                                            "Clip",
                                            "Erf",
                                            "Exp",
                                            "Log",
                                            "Sqrt",
                                            "Reciprocal",
                                            "Neg",
                                            "Abs",
                                            "Floor",
                                            "Ceil",
                                            "Round",
                                            "Sign",
                                            "Sin",
                                            "Cos",
                                            "Softmax",
                                            "LogSoftmax",
                                            "Identity",
                                            "Dropout",
                                            "BatchNormalization",
                                            "LayerNormalization",
                                            "RMSNormalization",
                                            "GroupNormalization",
                                            "InstanceNormalization",
                                            "RotaryEmbedding",
                                            "ScatterND",
                                            "ScatterElements",
                                            "TensorScatter",
                                            "CumSum",
                                            "Trilu"};
const std::set<std::string> kBroadcast = {"Add",
                                          "Sub",
                                          "Mul",
                                          "Div",
                                          "Pow",
                                          "Mod",
                                          "Max",
                                          "Min",
                                          "PRelu",
                                          "And",
                                          "Or",
                                          "Xor",
                                          "Equal",
                                          "Less",
                                          "Greater",
                                          "LessOrEqual",
                                          "GreaterOrEqual",
                                          "Where"};
const std::set<std::string> kBoolean = {
    "And", "Or", "Xor", "Not", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf"};

Dims broadcast(const Dims& a, const Dims& b) {
  if (!a || !b) return std::nullopt;
  const auto &longer = a->size() >= b->size() ? *a : *b, &shorter = a->size() >= b->size() ? *b : *a;
  std::vector<Dim> out = longer;
  size_t shift = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i)
    if (out[shift + i].value == 1) out[shift + i] = shorter[i];
  return out;
}

Dim window(const Dim& in, int64_t kernel, int64_t stride, int64_t dilation, int64_t pads, bool ceil) {
  if (!in.fixed()) return {};
  int64_t span = in.value + pads - dilation * (kernel - 1) - 1;
  return {(span + (ceil ? stride - 1 : 0)) / std::max<int64_t>(stride, 1) + 1, ""};
}

// Convolution and pooling: [N, C, spatial...].
Dims windowed(const Node& n, const std::vector<Dim>& x, const std::vector<int64_t>& kernel, Dim channels) {
  size_t spatial = x.size() < 2 ? 0 : x.size() - 2;
  if (spatial == 0 || kernel.size() < spatial) return std::nullopt;
  std::vector<int64_t> strides = attribute_ints(n, "strides"), dilations = attribute_ints(n, "dilations"),
                       pads = attribute_ints(n, "pads"), extra = attribute_ints(n, "output_padding");
  strides.resize(spatial, 1);
  dilations.resize(spatial, 1);
  pads.resize(2 * spatial, 0);
  extra.resize(spatial, 0);
  std::vector<Dim> y = {x[0], channels};
  bool same = attribute_text(n, "auto_pad", "NOTSET").starts_with("SAME");
  for (size_t i = 0; i < spatial; ++i) {
    const Dim& in = x[2 + i];
    int64_t pad = pads[i] + pads[spatial + i];
    if (!in.fixed())
      y.push_back({});
    else if (is(&n, "ConvTranspose"))
      y.push_back({(in.value - 1) * strides[i] - pad + dilations[i] * (kernel[i] - 1) + extra[i] + 1, ""});
    else if (same)
      y.push_back({(in.value + strides[i] - 1) / std::max<int64_t>(strides[i], 1), ""});
    else
      y.push_back(window(in, kernel[i], strides[i], dilations[i], pad, attribute(n, "ceil_mode", 0) != 0));
  }
  return y;
}

std::vector<int64_t> integers(const Graph& g, const Node& n, int i, const char* old_attribute) {
  if (const TensorProto* t = g.constant(input(n, i))) {
    std::vector<float> v = g.values(*t);
    return {v.begin(), v.end()};
  }
  return attribute_ints(n, old_attribute);
}

Dims reshaped(const Graph& g, const Node& n, const std::vector<Dim>& x) {
  const TensorProto* target = g.constant(input(n, 1));
  if (!target) return std::nullopt;
  std::vector<Dim> y;
  int64_t known_in = 1, known_out = 1;
  int inferred = -1;
  bool dynamic = false;
  for (const Dim& d : x) d.fixed() ? void(known_in *= d.value) : void(dynamic = true);
  for (float f : g.values(*target)) {
    int64_t v = int64_t(f);
    size_t i = y.size();
    if (v == 0 && attribute(n, "allowzero", 0) == 0)
      y.push_back(i < x.size() ? x[i] : Dim());
    else
      y.push_back({v, ""});
    if (v == -1) inferred = int(i);
    if (y.back().value > 0) known_out *= y.back().value;
    if (!y.back().fixed() && v == 0) dynamic = false;  // carried over on both sides
  }
  if (inferred >= 0 && !dynamic && known_out > 0 && known_in % known_out == 0)
    y[size_t(inferred)].value = known_in / known_out;
  return y;
}

Dims product(const Dims& a, const Dims& b) {
  if (!a || !b || a->size() < 2 || b->size() < 2) return std::nullopt;
  Dims heads_a = std::vector<Dim>(a->begin(), a->end() - 2), heads_b = std::vector<Dim>(b->begin(), b->end() - 2);
  std::vector<Dim> y = *broadcast(heads_a, heads_b);
  y.push_back((*a)[a->size() - 2]);
  y.push_back(b->back());
  return y;
}

Dims shape_of(const Graph& g, const Node& n) {
  const std::string& op = n.op_type();
  const Dims& x = g.type(input(n, 0)).shape;
  if (kSameAsFirst.contains(op) || op == "QuantizeLinear" || op == "DequantizeLinear" || op == "Cast" || op == "Not")
    return x;
  if (kBroadcast.contains(op)) {
    Dims y = x;
    for (int i = 1; i < n.input_size(); ++i) y = broadcast(y, g.type(n.input(i)).shape);
    return y;
  }
  if (op == "MatMul") return product(x, g.type(input(n, 1)).shape);
  if (!x) return std::nullopt;
  size_t rank = x->size();
  if (op == "Conv" || op == "ConvTranspose") {
    const Dims& w = g.type(input(n, 1)).shape;
    if (!w || w->size() != rank || rank < 3) return std::nullopt;
    std::vector<int64_t> kernel;
    for (size_t i = 2; i < w->size(); ++i) kernel.push_back((*w)[i].value);
    Dim channels = op == "Conv" ? (*w)[0] : Dim{(*w)[1].value * attribute(n, "group", 1), ""};
    return windowed(n, *x, kernel, channels);
  }
  if (op == "MaxPool" || op == "AveragePool")
    return rank < 3 ? std::nullopt : windowed(n, *x, attribute_ints(n, "kernel_shape"), (*x)[1]);
  if (op == "GlobalAveragePool" || op == "GlobalMaxPool") {
    std::vector<Dim> y = *x;
    for (size_t i = 2; i < rank; ++i) y[i] = {1, ""};
    return y;
  }
  if (op == "Gemm") {
    const Dims& w = g.type(input(n, 1)).shape;
    if (rank != 2 || !w || w->size() != 2) return std::nullopt;
    size_t row = attribute(n, "transA", 0) ? 1 : 0, column = attribute(n, "transB", 0) ? 0 : 1;
    return std::vector<Dim>{(*x)[row], (*w)[column]};
  }
  if (op == "Transpose") {
    std::vector<int64_t> perm = attribute_ints(n, "perm");
    std::vector<Dim> y = *x;
    for (size_t i = 0; i < rank; ++i) {
      size_t from = perm.size() == rank ? size_t(perm[i]) : rank - 1 - i;
      if (from >= rank) return std::nullopt;
      y[i] = (*x)[from];
    }
    return y;
  }
  if (op == "Flatten" && rank >= 1) {
    Dim rows = attribute(n, "axis", 1) == 1 ? (*x)[0] : Dim(), columns{1, ""};
    for (size_t i = 1; i < rank; ++i)
      columns.value = (*x)[i].fixed() && columns.fixed() ? columns.value * (*x)[i].value : -1;
    return std::vector<Dim>{rows, attribute(n, "axis", 1) == 1 ? columns : Dim()};
  }
  if (op == "Reshape") return reshaped(g, n, *x);
  if (op == "Concat") {
    int64_t axis = attribute(n, "axis", 0);
    if (axis < 0) axis += int64_t(rank);
    if (axis < 0 || axis >= int64_t(rank)) return std::nullopt;
    std::vector<Dim> y = *x;
    for (int i = 1; i < n.input_size(); ++i) {
      const Dims& part = g.type(n.input(i)).shape;
      if (!part || part->size() != rank) return std::nullopt;
      Dim &sum = y[size_t(axis)], d = (*part)[size_t(axis)];
      sum = sum.fixed() && d.fixed() ? Dim{sum.value + d.value, ""} : Dim();
    }
    return y;
  }
  if (op == "Unsqueeze" || op == "Squeeze") {
    std::vector<int64_t> axes = integers(g, n, 1, "axes");
    int64_t out_rank = int64_t(rank) + (op == "Unsqueeze" ? int64_t(axes.size()) : 0);
    for (int64_t& a : axes) a += a < 0 ? out_rank : 0;
    std::vector<Dim> y;
    if (op == "Squeeze") {
      for (size_t i = 0; i < rank; ++i)
        if (std::find(axes.begin(), axes.end(), int64_t(i)) == axes.end()) y.push_back((*x)[i]);
      return axes.empty() ? Dims() : Dims(y);
    }
    for (size_t i = 0, from = 0; i < size_t(out_rank); ++i) {
      bool added = std::find(axes.begin(), axes.end(), int64_t(i)) != axes.end();
      if (!added && from >= rank) return std::nullopt;
      y.push_back(added ? Dim{1, ""} : (*x)[from++]);
    }
    return y;
  }
  if (op == "Gather") {
    const Dims& indices = g.type(input(n, 1)).shape;
    int64_t axis = attribute(n, "axis", 0);
    if (axis < 0) axis += int64_t(rank);
    if (!indices || axis < 0 || axis >= int64_t(rank)) return std::nullopt;
    std::vector<Dim> y(x->begin(), x->begin() + axis);
    y.insert(y.end(), indices->begin(), indices->end());
    y.insert(y.end(), x->begin() + axis + 1, x->end());
    return y;
  }
  if (op == "Attention" && rank == 4) {
    const Dims& v = g.type(input(n, 2)).shape;
    std::vector<Dim> y = *x;
    y[3] = v && v->size() == 4 ? (*v)[3] : Dim();
    return y;
  }
  if (op == "Shape") return std::vector<Dim>{{int64_t(rank), ""}};
  return std::nullopt;
}

int dtype_of(const Graph& g, const Node& n) {
  const std::string& op = n.op_type();
  if (op == "Cast") return int(attribute(n, "to", 0));
  if (kBoolean.contains(op)) return TensorProto::BOOL;
  if (op == "Shape" || op == "ArgMax" || op == "ArgMin" || op == "NonZero" || op == "Size") return TensorProto::INT64;
  if (op == "DequantizeLinear") {
    int scale = g.type(input(n, 1)).dtype;
    return scale ? scale : int(TensorProto::FLOAT);
  }
  if (op == "QuantizeLinear") {
    if (int64_t given = attribute(n, "output_dtype", 0)) return int(given);
    int zero = g.type(input(n, 2)).dtype;
    return zero ? zero : int(TensorProto::UINT8);
  }
  if (op == "Where") return g.type(input(n, 1)).dtype;
  return g.type(input(n, 0)).dtype;
}

}  // namespace

void Graph::infer() {
  for (const Node* n : nodes_) {
    if (n->output_size() == 0 || n->output(0).empty()) continue;
    TensorType& known = types_[n->output(0)];
    TensorType told = known;
    if (!told.dtype) told.dtype = dtype_of(*this, *n);
    if (!told.shape) told.shape = shape_of(*this, *n);
    types_[n->output(0)] = told;
    if (n->op_type() == "Split" || n->op_type() == "TopK")
      for (int i = 0; i < n->output_size(); ++i)
        if (!types_[n->output(i)].dtype) types_[n->output(i)].dtype = told.dtype;
  }
}

}  // namespace xylem::lint
