// SPDX-License-Identifier: Apache-2.0
#include "models/export/lint/graph_onnx.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "core/tensor/half.h"
#include "core/util/check.h"
#include "models/export/onnx/file.h"

namespace xylem::lint {
namespace {

using onnx::TensorProto;
const std::vector<const Node*> kNobody;

std::vector<Dim> dims_of(const onnx::TensorShapeProto& shape) {
  std::vector<Dim> dims;
  for (const auto& d : shape.dim()) dims.push_back({d.has_dim_value() ? d.dim_value() : -1, d.dim_param()});
  return dims;
}

TensorType type_of(const onnx::ValueInfoProto& v) {
  TensorType t;
  if (!v.type().has_tensor_type()) return t;
  t.dtype = v.type().tensor_type().elem_type();
  if (v.type().tensor_type().has_shape()) t.shape = dims_of(v.type().tensor_type().shape());
  return t;
}

TensorType type_of(const TensorProto& v) {
  TensorType t{.dtype = v.data_type(), .shape = std::vector<Dim>()};
  for (int64_t d : v.dims()) t.shape->push_back({d, ""});
  return t;
}

const onnx::AttributeProto* find(const Node& node, const char* name) {
  for (const auto& a : node.attribute())
    if (a.name() == name) return &a;
  return nullptr;
}

}  // namespace

Graph::Graph(const onnx::ModelProto& m, Ranges r, std::optional<std::string> folder)
    : model(m), graph(m.graph()), ranges(std::move(r)), folder_(std::move(folder)) {
  for (const auto& o : model.opset_import())
    if (o.domain().empty() || o.domain() == "ai.onnx") opset = int(o.version());
  for (const auto& p : model.metadata_props()) {
    if (!p.key().starts_with("xylem.range.") || ranges.contains(p.key().substr(12))) continue;
    std::vector<int64_t> sizes;
    std::istringstream parts(p.value());
    for (std::string part; std::getline(parts, part, ',');) sizes.push_back(std::atoll(part.c_str()));
    if (sizes.size() == 3) ranges[p.key().substr(12)] = sizes;
  }
  index();
  infer();
}

void Graph::index() {
  for (const auto& t : graph.initializer()) {
    constants_[t.name()] = &t;
    types_[t.name()] = type_of(t);
  }
  for (const auto& v : graph.value_info()) types_[v.name()] = type_of(v);
  for (const auto& v : graph.input()) {
    types_[v.name()] = type_of(v);
    if (!constants_.contains(v.name())) inputs_.insert(v.name());  // IR 3 lists initializers as inputs too
  }
  for (const auto& v : graph.output()) {
    types_[v.name()] = type_of(v);
    outputs_.insert(v.name());
  }
  for (const Node& n : graph.node()) {
    nodes_.push_back(&n);
    for (const auto& o : n.output())
      if (!o.empty()) producers_.emplace(o, &n);
    for (const auto& i : n.input())
      if (!i.empty()) consumers_[i].push_back(&n);
    if (is(&n, "Constant") && n.output_size() == 1)
      if (const auto* a = find(n, "value"); a && a->has_t()) {
        constants_[n.output(0)] = &a->t();
        types_[n.output(0)] = type_of(a->t());
      }
  }
}

const Node* Graph::producer(const std::string& tensor) const {
  auto it = producers_.find(tensor);
  return it == producers_.end() ? nullptr : it->second;
}

const std::vector<const Node*>& Graph::consumers(const std::string& tensor) const {
  auto it = consumers_.find(tensor);
  return it == consumers_.end() ? kNobody : it->second;
}

const TensorType& Graph::type(const std::string& tensor) const {
  static const TensorType unknown;
  auto it = types_.find(tensor);
  return it == types_.end() ? unknown : it->second;
}

const TensorProto* Graph::constant(const std::string& tensor) const {
  std::string name = tensor;
  for (int hops = 0; hops < 8; ++hops) {
    if (auto it = constants_.find(name); it != constants_.end()) return it->second;
    const Node* p = producer(name);
    if (!is(p, "Identity") && !is(p, "Cast")) return nullptr;
    name = input(*p, 0);
  }
  return nullptr;
}

std::string Graph::metadata(const std::string& key) const {
  for (const auto& p : model.metadata_props())
    if (p.key() == key) return p.value();
  return "";
}

int Graph::rank(const std::string& tensor) const {
  const TensorType& t = type(tensor);
  return t.shape ? int(t.shape->size()) : -1;
}

std::optional<int64_t> Graph::size(const std::string& tensor, int dim) const {
  const TensorType& t = type(tensor);
  if (!t.shape) return std::nullopt;
  int n = int(t.shape->size());
  if (dim < 0) dim += n;
  if (dim < 0 || dim >= n || !(*t.shape)[size_t(dim)].fixed()) return std::nullopt;
  return (*t.shape)[size_t(dim)].value;
}

double Graph::typical(const Dim& dim) const {
  if (dim.fixed()) return double(dim.value);
  auto it = ranges.find(dim.symbol);
  return it == ranges.end() ? 1 : double(it->second[1]);
}

double Graph::typical_numel(const std::string& tensor) const {
  const TensorType& t = type(tensor);
  if (!t.shape) return 0;
  double n = 1;
  for (const Dim& d : *t.shape) n *= typical(d);
  return n;
}

const Node* Graph::only_consumer(const std::string& tensor) const {
  const auto& c = consumers(tensor);
  return c.size() == 1 && !is_output(tensor) ? c[0] : nullptr;
}

int64_t attribute(const Node& node, const char* name, int64_t otherwise) {
  const auto* a = find(node, name);
  return a && a->has_i() ? a->i() : otherwise;
}

std::string attribute_text(const Node& node, const char* name, const char* otherwise) {
  const auto* a = find(node, name);
  return a && a->has_s() ? a->s() : otherwise;
}

std::vector<int64_t> attribute_ints(const Node& node, const char* name) {
  const auto* a = find(node, name);
  return a ? std::vector<int64_t>(a->ints().begin(), a->ints().end()) : std::vector<int64_t>();
}

bool has_attribute(const Node& node, const char* name) { return find(node, name) != nullptr; }

std::string label(const Node& node) {
  if (!node.name().empty()) return node.name();
  return node.op_type() + (node.output_size() ? " -> " + node.output(0) : "");
}

int64_t numel(const TensorProto& t) {
  int64_t n = 1;
  for (int64_t d : t.dims()) {
    if (d < 0 || (d > 0 && n > INT64_MAX / d)) return 0;
    n *= d;
  }
  return n;
}

namespace {

template <class T, class Convert>
std::vector<float> from_raw(const std::string& raw, size_t n, Convert convert) {
  std::vector<float> out(std::min(n, raw.size() / sizeof(T)));
  for (size_t i = 0; i < out.size(); ++i) {
    T v;
    std::memcpy(&v, raw.data() + i * sizeof(T), sizeof(T));
    out[i] = convert(v);
  }
  return out;
}

template <class T>
std::vector<float> from_raw(const std::string& raw, size_t n) {
  return from_raw<T>(raw, n, [](T v) { return float(v); });
}

// FLOAT8E4M3FN: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities.
float from_e4m3(uint8_t v) {
  int exponent = (v >> 3) & 15, mantissa = v & 7;
  float magnitude = exponent == 0                     ? std::ldexp(float(mantissa), -9)
                    : exponent == 15 && mantissa == 7 ? std::numeric_limits<float>::quiet_NaN()
                                                      : std::ldexp(float(8 + mantissa), exponent - 10);
  return v & 0x80 ? -magnitude : magnitude;
}

}  // namespace

std::string Graph::raw_data(const TensorProto& t) const {
  const bool outside = folder_ && t.data_location() == TensorProto::EXTERNAL;
  return outside ? onnx_file::external_data(*folder_, t) : t.raw_data();
}

std::vector<float> Graph::values(const TensorProto& t) const {
  size_t n = size_t(numel(t));
  const std::string raw = raw_data(t);
  auto f16_value = [](uint16_t bits) { return float(std::bit_cast<float16>(bits)); };
  auto bf16_value = [](uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); };
  if (!raw.empty()) switch (t.data_type()) {
      case TensorProto::FLOAT:
        return from_raw<float>(raw, n);
      case TensorProto::DOUBLE:
        return from_raw<double>(raw, n);
      case TensorProto::FLOAT16:
        return from_raw<uint16_t>(raw, n, f16_value);
      case TensorProto::BFLOAT16:
        return from_raw<uint16_t>(raw, n, bf16_value);
      case TensorProto::FLOAT8E4M3FN:
        return from_raw<uint8_t>(raw, n, from_e4m3);
      case TensorProto::INT8:
        return from_raw<int8_t>(raw, n);
      case TensorProto::UINT8:
      case TensorProto::BOOL:
        return from_raw<uint8_t>(raw, n);
      case TensorProto::INT32:
        return from_raw<int32_t>(raw, n);
      case TensorProto::INT64:
        return from_raw<int64_t>(raw, n);
      default:
        return {};
    }
  if (t.float_data_size()) return {t.float_data().begin(), t.float_data().end()};
  if (t.double_data_size()) return {t.double_data().begin(), t.double_data().end()};
  if (t.int64_data_size()) return {t.int64_data().begin(), t.int64_data().end()};
  std::vector<float> out;
  for (int32_t v : t.int32_data()) switch (t.data_type()) {
      case TensorProto::FLOAT16:
        out.push_back(f16_value(uint16_t(v)));
        break;
      case TensorProto::BFLOAT16:
        out.push_back(bf16_value(uint16_t(v)));
        break;
      case TensorProto::FLOAT8E4M3FN:
        out.push_back(from_e4m3(uint8_t(v)));
        break;
      default:
        out.push_back(float(v));
    }
  return out;
}

size_t element_bits(int dtype) {
  switch (dtype) {
    case TensorProto::DOUBLE:
    case TensorProto::INT64:
    case TensorProto::UINT64:
      return 64;
    case TensorProto::FLOAT:
    case TensorProto::INT32:
    case TensorProto::UINT32:
      return 32;
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
    case TensorProto::INT16:
    case TensorProto::UINT16:
      return 16;
    case TensorProto::INT4:
    case TensorProto::UINT4:
    case TensorProto::FLOAT4E2M1:
      return 4;
    default:
      return 8;
  }
}

std::string dtype_name(int dtype) {
  if (!TensorProto::DataType_IsValid(dtype)) return "type " + std::to_string(dtype);
  std::string name = TensorProto::DataType_Name(TensorProto::DataType(dtype));
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return char(std::tolower(c)); });
  return name;
}

std::vector<Weighted> weighted_layers(const Graph& g) {
  std::vector<Weighted> layers;
  for (const Node* node : g.nodes()) {
    const std::string& op = node->op_type();
    bool conv = op == "Conv" || op == "ConvTranspose";
    if (!conv && op != "Gemm" && op != "MatMul") continue;
    Weighted w{.node = node, .weight = nullptr};
    std::string source = input(*node, 1);
    bool transposed = false;
    for (int hops = 0; hops < 6 && !g.constant(source); ++hops) {
      const Node* p = g.producer(source);
      if (is(p, "DequantizeLinear"))
        w.weight_dq = p;
      else if (is(p, "Transpose"))
        transposed = !transposed;
      else if (!is(p, "QuantizeLinear"))
        break;
      source = input(*p, 0);
    }
    w.weight = g.constant(source);
    if (const Node* p = g.producer(input(*node, 0)); is(p, "DequantizeLinear")) w.input_dq = p;
    if (!w.weight || w.weight->dims_size() < 2) continue;  // a product of two activations
    auto dim = [&](int i) { return w.weight->dims(i); };
    if (conv) {
      w.groups = attribute(*node, "group", 1);
      w.out = op == "Conv" ? dim(0) : dim(1) * w.groups;
      w.in = op == "Conv" ? dim(1) * w.groups : dim(0);
      for (int i = 2; i < w.weight->dims_size(); ++i) w.kernel *= dim(i);
    } else {
      int last = w.weight->dims_size() - 1;
      bool swapped = transposed != (op == "Gemm" && attribute(*node, "transB", 0) != 0);
      w.in = dim(swapped ? last : last - 1);
      w.out = dim(swapped ? last - 1 : last);
    }
    int carrier = g.type(node->output(0)).dtype;
    if (!carrier) carrier = g.type(input(*node, 0)).dtype;
    if (!carrier) carrier = w.weight->data_type();
    w.precision = carrier == TensorProto::FLOAT16 ? "fp16" : carrier == TensorProto::BFLOAT16 ? "bf16" : "fp32";
    if (w.input_dq && w.weight_dq) {
      int stored = g.type(input(*w.input_dq, 0)).dtype;
      if (stored == TensorProto::INT8 || stored == TensorProto::UINT8) w.precision = "int8";
      if (stored == TensorProto::FLOAT8E4M3FN) w.precision = "fp8";
    }
    layers.push_back(w);
  }
  return layers;
}

}  // namespace xylem::lint
